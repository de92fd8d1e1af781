// Shared by all pages: the stream of changes, times in the reader's own zone, and texts.

const $ = (id) => document.getElementById(id);

/** The pool as this page knows it. Times in rows are scheduler time; `offset` makes them seconds since the epoch. */
export const pool = { now: 0, offset: 0, at: 0, about: {}, rows: new Map(), groups: [], trouble: "" };

export function take(update) {
  if (update.all) pool.rows.clear();
  for (const row of update.rows ?? []) pool.rows.set(row.key, row);
  for (const key of update.gone ?? []) pool.rows.delete(key);
  Object.assign(pool, { now: update.now, offset: update.offset, at: performance.now() });
  if (update.about) pool.about = update.about;
  if (update.groups) pool.groups = update.groups;
  if (update.trouble !== undefined) pool.trouble = update.trouble;
}

/** Scheduler time now; it advances between updates. */
export const now = () => pool.now + (performance.now() - pool.at) / 1000;

export function first() {
  take(JSON.parse($("state").textContent));
}

/** Follow the stream; `changed` is called with the keys of the rows that changed. */
export function follow(changed) {
  const live = $("live");
  const say = (words, kind) => {
    live.textContent = words;
    live.className = `live ${kind}`;
  };
  const source = new EventSource("/events");
  source.addEventListener("open", () => say("live", "on"));
  source.addEventListener("error", () => say(source.readyState === EventSource.CLOSED ? "ended: reload" : "reconnecting", "off"));
  source.addEventListener("update", (event) => {
    const update = JSON.parse(event.data);
    take(update);
    const trouble = $("trouble");
    if (trouble) {
      trouble.hidden = !(pool.trouble || pool.about.silence);
      trouble.textContent = pool.trouble
        ? `The pool does not answer: ${pool.trouble}. What stands here is what it said last.`
        : (pool.about.silence ?? "");
    }
    changed(new Set([...(update.rows ?? []).map((row) => row.key), ...(update.gone ?? [])]), update.all);
  });
  source.addEventListener("time", (event) => take({ ...JSON.parse(event.data), rows: [] }));
  window.addEventListener("pagehide", () => source.close());
}

export function duration(seconds) {
  const size = Math.abs(seconds);
  if (!Number.isFinite(size)) return "never";
  if (size < 1) return "0s";
  const parts = [["d", 86400], ["h", 3600], ["m", 60], ["s", 1]];
  let rest = size < 60 ? Math.round(size) : size < 3600 ? Math.round(size / 1) : Math.round(size / 60) * 60;
  const found = [];
  for (const [unit, length] of parts) {
    const count = Math.floor(rest / length);
    rest -= count * length;
    if (count) found.push(`${count}${unit}`);
    if (found.length === 2) break;
  }
  return found.join("");
}

const sameDay = new Intl.DateTimeFormat(undefined, { hour: "2-digit", minute: "2-digit" });
const sameYear = new Intl.DateTimeFormat(undefined, { day: "numeric", month: "short", hour: "2-digit", minute: "2-digit" });
const anyYear = new Intl.DateTimeFormat(undefined, { dateStyle: "medium", timeStyle: "short" });
export const wholeDate = new Intl.DateTimeFormat(undefined, { dateStyle: "full", timeStyle: "long" });

export const dateOf = (time) => new Date((time + pool.offset) * 1000);

export function clock(time) {
  const date = dateOf(time);
  const today = new Date();
  if (date.toDateString() === today.toDateString()) return sameDay.format(date);
  return (date.getFullYear() === today.getFullYear() ? sameYear : anyYear).format(date);
}

export const SYMBOLS = { feasible: "✓", "at risk": "!", infeasible: "✕", met: "✓", missed: "✕", crashed: "†", cancelled: "-" };

export function badge(verdict) {
  const span = document.createElement("span");
  span.className = `badge ${(verdict ?? "").replace(" ", "-")}`;
  span.dataset.symbol = SYMBOLS[verdict] ?? "?";
  span.textContent = verdict ?? "no verdict yet";
  return span;
}

const SVG = "http://www.w3.org/2000/svg";

/** An element of SVG. */
export function svg(name, attributes, ...inside) {
  const made = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  made.append(...inside);
  return made;
}

/** An element of HTML; text stays text. */
export function html(name, attributes, ...inside) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) {
    if (value !== undefined && value !== null && value !== false) made.setAttribute(key, value === true ? "" : value);
  }
  made.append(...inside);
  return made;
}

export function say(words, bad = false) {
  const said = $("said");
  said.textContent = words;
  said.className = bad ? "said bad" : "said";
  clearTimeout(say.timer);
  say.timer = setTimeout(() => (said.textContent = ""), bad ? 12000 : 6000);
}

/** Change something through the API; return its answer. */
export async function post(path, body) {
  const answer = await fetch(`/api/v1${path}`, {
    method: "POST",
    headers: { "Content-Type": "application/json" },
    body: JSON.stringify(body),
  });
  const said = await answer.json();
  if (answer.ok) return said;
  throw Object.assign(new Error(said.error?.words ?? `refused (${answer.status})`), said.error);
}

export { $ };

/**
 * Draws one at a time: what is asked for meanwhile is drawn once more, so that no answer that comes late is what is shown.
 */
export function oneAtATime(draw) {
  let drawing = null;
  let again = false;
  return function redraw() {
    again = true;
    drawing ??= (async () => {
      try {
        while (again) {
          again = false;
          await draw();
        }
      } finally {
        drawing = null;
      }
    })();
    return drawing;
  };
}

/** Redraw an element while the page is visible, and when its width changes: charts are as wide as the page. */
export function keepDrawn(place, drawOnce) {
  const draw = oneAtATime(drawOnce);
  let width = 0;
  new ResizeObserver(() => {
    if (Math.abs(place.clientWidth - width) < 40) return;
    width = place.clientWidth;
    draw().catch(() => {});
  }).observe(place);
  setInterval(() => {
    if (!document.hidden) draw().catch(() => {});
  }, 10000);
}
