// The lanes of the devices over the chosen time, and the panels of parts.

import { $, oneAtATime, say } from "./stream.js";

const choices = [...document.querySelectorAll("#last input")];
const wanted = new URLSearchParams(location.hash.slice(1)).get("last");
for (const choice of choices) if (choice.value === wanted) choice.checked = true;

const load = oneAtATime(async () => {
  const last = choices.find((choice) => choice.checked).value;
  history.replaceState(null, "", `#last=${last}`);
  const answer = await fetch(`/timeline/lanes?last=${last}`);
  const words = await answer.text();
  if (!answer.ok) return say(words, true);
  $("lanes").innerHTML = words; // made and escaped by our own server
});

for (const choice of choices) choice.addEventListener("change", () => load());
load().catch((error) => say(error.message, true));
setInterval(() => {
  if (!document.hidden) load().catch(() => {});
}, 5000);
