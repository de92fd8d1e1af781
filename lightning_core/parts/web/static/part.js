// The page of a part: redrawn while it is open, as wide as the window.

import { $, keepDrawn } from "./stream.js";

const part = $("part");

async function draw() {
  const width = Math.max(340, Math.min(Math.round(part.clientWidth) - 26, 1400)); // less the padding of a panel
  const answer = await fetch(`${location.pathname}/body?width=${width}`);
  if (!answer.ok) return;
  const open = [...part.querySelectorAll("details")].map((details) => details.open);
  part.innerHTML = await answer.text(); // made by our own server; what is not HTML of a part is escaped
  part.querySelectorAll("details").forEach((details, index) => (details.open = open[index] ?? false));
}

keepDrawn(part, draw);
