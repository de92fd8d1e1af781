// The market as it goes on.

import { $ } from "./stream.js";

setInterval(async () => {
  if (document.hidden) return;
  const answer = await fetch("/market/parts").catch(() => null);
  if (answer?.ok) $("market").innerHTML = await answer.text(); // made and escaped by our own server
}, 10000);
