// A bundle's text: its problems at their lines, and its submission.

import { $, html, post, say } from "./stream.js";

const text = $("bundle");

async function send(path) {
  try {
    return await post(`/bundles${path}`, { bundle: text.value });
  } catch (error) {
    if (error.problems) return { problems: error.problems };
    throw error;
  }
}

/** Move to the line of a problem. */
function lead(line) {
  const lines = text.value.split("\n");
  const start = lines.slice(0, line - 1).reduce((sum, one) => sum + one.length + 1, 0);
  text.focus();
  text.setSelectionRange(start, start + (lines[line - 1]?.length ?? 0));
  text.scrollTop = Math.max(0, (text.scrollHeight / lines.length) * (line - 4));
}

function show(words, items) {
  $("found").hidden = false;
  $("found-words").textContent = words;
  $("problems").replaceChildren(...items);
}

function problems(found) {
  text.setAttribute("aria-invalid", String(found.length > 0));
  const items = found.map(({ line, column, words }) => {
    if (line === null) return html("li", {}, words);
    const button = html("button", { type: "button", class: "plain" }, `line ${line}, column ${column}`);
    button.addEventListener("click", () => lead(line));
    return html("li", {}, button, ` ${words}`);
  });
  show(found.length ? `${found.length} problem${found.length > 1 ? "s" : ""}` : "No problem found", items);
}

async function guarded(work) {
  const buttons = document.querySelectorAll("#bundle-form button");
  for (const button of buttons) button.disabled = true;
  try {
    await work();
  } catch (error) {
    say(error.message, true);
  }
  for (const button of buttons) button.disabled = false;
}

$("check").addEventListener("click", () => guarded(async () => problems((await send("/check")).problems)));
$("bundle-form").addEventListener("submit", (event) => {
  event.preventDefault();
  $("sure").returnValue = "";
  $("sure").showModal();
});
$("sure").addEventListener("close", () => {
  if ($("sure").returnValue !== "yes") return;
  guarded(async () => {
    const answer = await send("");
    if (answer.problems) return problems(answer.problems);
    const links = answer.jobs.map((name) => html("li", {}, html("a", { href: `/jobs/${encodeURIComponent(name)}` }, name)));
    show(`Submitted: ${answer.jobs.length} job${answer.jobs.length === 1 ? "" : "s"}`, links);
    text.value = "";
  });
});
