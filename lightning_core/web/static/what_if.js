// Which jobs would finish in time, before anything is changed: the server simulates the settings of the sliders.

import { $, clock, duration, now, pool, post, say } from "./stream.js";

const panel = $("what-if");
// The slider's middle is the time that is left now; its ends are a tenth of it and ten times as much.
const FACTOR = 10;

const chosen = () => [...pool.rows.values()].filter((row) => row.name === $("if-job").value && row.finished === null).at(-1);

const own = () => Number($("if-own").value);

function left() {
  const row = chosen();
  if (!row) return null;
  const time = row.deadline > now() ? row.deadline : (row.finish?.[1] ?? now() + 3600); // null is not above now
  return Math.max(time - now(), 60) * FACTOR ** (($("if-deadline").value - 50) / 50);
}

function words() {
  const moved = $("if-deadline").value !== "50";
  const row = chosen();
  $("if-deadline").disabled = !row;
  $("if-deadline-words").textContent = !row || !moved ? "unchanged" : `in ${duration(left())} (${clock(now() + left())})`;
  $("if-own").disabled = !row;
  $("if-own-words").textContent = !row || own() === 0 ? "unchanged" : `at most ${own()}`;
  const { value, dataset } = $("if-devices");
  $("if-devices-words").textContent = value === dataset.now ? `${value}, unchanged` : `${value} instead of ${dataset.now}`;
  if ($("if-apply")) $("if-apply").disabled = !row || !(moved || own());
}

function jobs() {
  const select = $("if-job");
  if (select.tagName !== "SELECT") return;
  const names = [...pool.rows.values()].filter((row) => row.finished === null).map((row) => row.name);
  names.sort((a, b) => a.localeCompare(b, undefined, { numeric: true }));
  if ([...select.options].slice(1).map((one) => one.value).join("\n") === names.join("\n")) return;
  const before = select.value;
  select.replaceChildren(new Option("none", ""), ...names.map((name) => new Option(name, name)));
  select.value = names.includes(before) ? before : "";
}

let asked = 0;
let due = null;

async function ask() {
  const number = ++asked;
  const parts = new URLSearchParams();
  const later = $("if-deadline").value !== "50";
  if (chosen() && (later || own())) {
    parts.set("job", $("if-job").value);
    if (later) parts.set("left", left().toFixed(0));
    if (own()) parts.set("own", own());
  }
  if ($("if-devices").value !== $("if-devices").dataset.now) parts.set("devices", $("if-devices").value);
  $("if-answer").setAttribute("aria-busy", "true");
  const answer = await fetch(`/what-if?${parts}`);
  const text = await answer.text();
  if (number !== asked) return; // another question has been asked since
  $("if-answer").removeAttribute("aria-busy");
  if (answer.ok) $("if-answer").innerHTML = text; // made and escaped by our own server
  else $("if-answer").textContent = text.trim();
}

function moved() {
  words();
  clearTimeout(due);
  due = setTimeout(() => ask().catch((error) => say(error.message, true)), 250);
}

if (panel) {
  panel.addEventListener("toggle", () => {
    jobs();
    words();
    if (panel.open) ask().catch((error) => say(error.message, true)); // how it stands without a change
  });
  $("if-job").addEventListener("focus", jobs);
  $("if-job").addEventListener("change", moved);
  $("if-form").addEventListener("submit", (event) => event.preventDefault());
  $("if-form").addEventListener("input", moved);
  $("if-form").addEventListener("reset", () => setTimeout(moved));
  $("if-apply")?.addEventListener("click", async () => {
    try {
      const address = `/jobs/${encodeURIComponent($("if-job").value)}`;
      const deadline = $("if-deadline").value !== "50" && `${left().toFixed(0)}s`;
      if (own()) say(await post(`${address}/devices`, { devices: own() }));
      if (deadline) say(await post(`${address}/deadline`, { deadline }));
      $("if-form").reset();
    } catch (error) {
      say(error.message, true);
    }
  });
}
