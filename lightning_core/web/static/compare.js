// Charts as wide as the page; they follow the pool while it is open.

import { $, keepDrawn } from "./stream.js";

const charts = $("charts");

async function draw() {
  const width = Math.max(340, Math.min(Math.round(charts.clientWidth), 1400));
  const answer = await fetch(`/compare/charts?${new URLSearchParams(location.search)}&width=${width}`);
  if (answer.ok) charts.innerHTML = await answer.text(); // made and escaped by our own server
}

if (charts) keepDrawn(charts, draw);
