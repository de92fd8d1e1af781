// The market as it goes on.

import { $ } from "./stream.js";

setInterval(async () => {
  if (document.hidden) return;
  const answer = await fetch("/market/parts").catch(() => null);
  if (!answer?.ok) return;
  const isOpen = document.querySelector("#market details")?.open ?? false;
  $("market").innerHTML = await answer.text(); // made and escaped by our own server
  document.querySelector("#market details").open = isOpen;
}, 10000);
