// The market as it goes on, with charts as wide as the page.

import { $, keepDrawn } from "./stream.js";

const market = $("market");

async function draw() {
  const width = Math.max(340, Math.min(Math.round(market.clientWidth) - 26, 1400)); // less the padding of a panel
  const answer = await fetch(`/market/parts?width=${width}`);
  if (!answer.ok) return;
  const isOpen = market.querySelector("details")?.open ?? false;
  market.innerHTML = await answer.text(); // made and escaped by our own server
  const details = market.querySelector("details"); // a pool without a market has none
  if (details) details.open = isOpen;
}

keepDrawn(market, draw);
