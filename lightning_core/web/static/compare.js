// Charts as wide as the page; they follow the pool while it is open.

import { $ } from "./stream.js";

const charts = $("charts");

async function draw() {
  const width = Math.max(340, Math.min(Math.round(charts.clientWidth), 1400));
  const answer = await fetch(`/compare/charts?${new URLSearchParams(location.search)}&width=${width}`);
  if (answer.ok) charts.innerHTML = await answer.text(); // made and escaped by our own server
}

if (charts) {
  let width = 0;
  new ResizeObserver(() => {
    if (Math.abs(charts.clientWidth - width) < 40) return;
    width = charts.clientWidth;
    draw().catch(() => {});
  }).observe(charts);
  setInterval(() => {
    if (!document.hidden) draw().catch(() => {});
  }, 10000);
}
