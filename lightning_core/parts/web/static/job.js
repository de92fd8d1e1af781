// The page of a job: a chart that follows it and can be zoomed, and the buttons that steer it.

import { $, badge, clock, dateOf, duration, first, follow, oneAtATime, pool, post, say, wholeDate } from "./stream.js";

const name = decodeURIComponent(location.pathname.split("/")[2]);
const address = `/jobs/${encodeURIComponent(name)}`;
const chart = $("chart");
const run = chart.dataset.run;
const isNewest = !new URLSearchParams(location.search).has("run");
let span = null; // seconds from the submission that are shown; null for all

// ---------------------------------------------------------------------------------------------------- the chart

const drawn = () => chart.querySelector(".drawn").dataset;
const limits = () => span ?? [0, Number(drawn().high)];

async function part(path) {
  const answer = await fetch(`${address}/${path}`);
  if (!answer.ok) throw new Error((await answer.text()).trim());
  return answer.text();
}

const redraw = oneAtATime(async () => {
  const width = Math.max(400, Math.min(Math.round(chart.clientWidth), 1400));
  const zoom = span ? `&from=${span[0]}&to=${span[1]}` : "";
  chart.innerHTML = await part(`chart?run=${run}&width=${width}${zoom}`); // made and escaped by our own server
});

function zoom(low, high) {
  const most = Number(drawn().end) * 3 + 10;
  const length = Math.min(Math.max(high - low, 1), most);
  const start = Math.max(low, 0);
  span = [start, start + length];
  redraw().catch((error) => say(error.message, true));
}

const by = (factor, shift) => () => {
  const [low, high] = limits();
  const half = ((high - low) / 2) * factor;
  const middle = (low + high) / 2 + shift * (high - low);
  zoom(middle - half, middle + half);
};
$("closer").addEventListener("click", by(0.5, 0));
$("wider").addEventListener("click", by(2, 0));
$("earlier").addEventListener("click", by(1, -0.4));
$("later").addEventListener("click", by(1, 0.4));
$("whole").addEventListener("click", () => {
  span = null;
  redraw().catch((error) => say(error.message, true));
});

let from = null;
let veil = null;
const timeAt = (event) => {
  const box = chart.querySelector("svg.chart").getBoundingClientRect();
  const width = chart.querySelector("svg.chart").viewBox.baseVal.width;
  const left = Number(chart.dataset.left);
  const right = width - Number(chart.dataset.margin);
  const x = ((event.clientX - box.left) / box.width) * width;
  const [low, high] = limits();
  return low + Math.min(Math.max((x - left) / (right - left), 0), 1) * (high - low);
};
chart.addEventListener("pointerdown", (event) => {
  event.preventDefault(); // no text is selected
  if (event.button !== 0 || !chart.querySelector("svg.chart")) return;
  from = { x: event.clientX, time: timeAt(event) };
  veil = document.createElement("div");
  veil.className = "veil";
  chart.append(veil);
});
window.addEventListener("pointermove", (event) => {
  if (!from) return;
  const box = chart.getBoundingClientRect();
  veil.style.left = `${Math.min(from.x, event.clientX) - box.left}px`;
  veil.style.width = `${Math.abs(event.clientX - from.x)}px`;
});
window.addEventListener("pointerup", (event) => {
  if (!from) return;
  const { x, time } = from;
  from = null;
  veil.remove();
  if (Math.abs(event.clientX - x) > 8) zoom(...[time, timeAt(event)].sort((a, b) => a - b));
});

// ---------------------------------------------------------------------------------------------------- following

/** Replace scheduler times from the server by dates. */
function dates() {
  for (const place of document.querySelectorAll("[data-at]")) {
    const at = Number(place.dataset.at);
    place.textContent = clock(at);
    place.title = wholeDate.format(dateOf(at));
  }
}

const mine = () => [...pool.rows.values()].filter((row) => row.name === name).sort((a, b) => a.submitted - b.submitted).at(-1);
let due = null;

async function refresh() {
  const row = mine();
  if (row) {
    $("verdict").replaceChildren(badge(row.verdict));
    $("reason").textContent = row.reason;
  }
  const asks = $("asks");
  if (asks) asks.hidden = row !== undefined && row.finished !== null;
  if (isNewest) $("facts").innerHTML = await part("facts");
  $("story").innerHTML = await part(`story?run=${run}`);
  dates();
  if (!from) await redraw();
}

function soon() {
  due ??= setTimeout(() => {
    due = null;
    if (!document.hidden) refresh().catch((error) => say(error.message, true));
  }, 2000);
}

async function log() {
  const box = $("log");
  if (!box || document.hidden) return;
  const answer = await fetch(`${address}/log`);
  const words = await answer.text();
  const atEnd = box.scrollTop + box.clientHeight >= box.scrollHeight - 8;
  if (box.textContent !== words) box.textContent = words;
  if (atEnd) box.scrollTop = box.scrollHeight;
}

first();
dates();
redraw().catch(() => {});
if (isNewest) {
  follow((changed) => [...changed].some((key) => key.startsWith(`${name}@`)) && soon());
  log().catch(() => {});
  setInterval(() => {
    const row = mine();
    if (row && row.finished === null) log().catch(() => {});
  }, 3000);
}
let width = chart.clientWidth;
new ResizeObserver(() => {
  if (Math.abs(chart.clientWidth - width) < 40) return;
  width = chart.clientWidth;
  redraw().catch(() => {});
}).observe(chart);

// ---------------------------------------------------------------------------------------------------- steering

const ASKS = {
  pause: { words: () => `Pause ${name}? It keeps its memory.`, body: () => ({ release: false }) },
  resume: { words: () => `Resume ${name}?`, body: () => ({}) },
  cancel: { words: () => `Cancel ${name}? It is saved first, and cannot be resumed.`, body: () => ({}) },
  deadline: {
    words: () => {
      const row = mine();
      return row?.deadline != null ? `The deadline of ${name} is in ${duration(row.deadline - pool.now)}.` : `${name} has no deadline.`;
    },
    label: "New deadline: from now (45m), or a time (18:00); none for none",
    body: (value) => ({ deadline: value }),
  },
  devices: {
    words: () => `How many devices is ${name} to train on?`,
    label: "Number; empty to leave it to the plan",
    body: (value) => ({ devices: value.trim() === "" ? null : Number(value) }),
  },
};

const dialog = $("ask");
for (const button of document.querySelectorAll("[data-ask]")) {
  button.addEventListener("click", () => {
    const action = button.dataset.ask;
    const ask = ASKS[action];
    $("ask-words").textContent = ask.words();
    $("ask-field").hidden = !ask.label;
    $("ask-label").textContent = ask.label ?? "";
    $("ask-value").value = "";
    dialog.onclose = async () => {
      if (dialog.returnValue !== "yes") return;
      try {
        say((await post(`${address}/${action}`, ask.body($("ask-value").value))).words);
        soon();
      } catch (error) {
        say(error.message, true);
      }
    };
    dialog.returnValue = "";
    dialog.showModal();
    (ask.label ? $("ask-value") : $("ask-yes")).focus();
  });
}
