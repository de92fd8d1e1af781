// The list of jobs.

import { $, SYMBOLS, badge, clock, dateOf, duration, first, follow, html, now, pool, svg, wholeDate } from "./stream.js";

const body = document.querySelector("#jobs tbody");
const shown = new Map(); // key -> {row, element}
const STEP = 200;
// The deadline is at the same place on every bar, so late jobs stand out in the column.
const DEADLINE = 0.78;
const WIDTH = 180;
const RANKS = { crashed: 5, missed: 5, infeasible: 1, "at risk": 0, feasible: 2, met: 6, cancelled: 7 };
const OUTCOMES = ["feasible", "at risk", "infeasible", "none", "met", "missed", "crashed", "cancelled"];
// Groups that are shown although all of their jobs have ended, the newest first.
const MAX_ENDED = 5;
const choice = { search: "", order: "urgent", outcomes: new Set(), groups: new Set(), limit: STEP };

// ---------------------------------------------------------------------------------------------------- choosing

const spare = (row) => (row.deadline === null || !row.finish || row.finish[1] === null ? Infinity : row.deadline - row.finish[1]);
const ORDERS = {
  urgent: (a, b) => rank(a) - rank(b) || (a.finished !== null ? b.finished - a.finished : spare(a) - spare(b)) || a.submitted - b.submitted,
  deadline: (a, b) => (a.deadline ?? Infinity) - (b.deadline ?? Infinity),
  spare: (a, b) => spare(a) - spare(b),
  newest: (a, b) => b.submitted - a.submitted,
  name: (a, b) => a.name.localeCompare(b.name, undefined, { numeric: true }),
  share: (a, b) => b.held * Math.max(b.devices.length, 1) - a.held * Math.max(a.devices.length, 1),
};

function rank(row) {
  if (row.finished !== null) return 10;
  return row.held > 0 && row.verdict !== "at risk" ? 1 : (RANKS[row.verdict] ?? 3);
}

function chosen() {
  const words = choice.search.toLowerCase().split(/\s+/).filter(Boolean);
  const found = [];
  const newest = new Map();
  for (const row of pool.rows.values()) if (!(newest.get(row.name) > row.submitted)) newest.set(row.name, row.submitted);
  const wantsAll = words.length || choice.outcomes.size || choice.groups.size;
  for (const row of pool.rows.values()) {
    if (choice.groups.size && !choice.groups.has(keyOf(row.owner, row.group))) continue;
    if (row.group && !wantsAll && (row.paused || row.finished !== null)) continue; // its group has a line
    if (row.submitted < newest.get(row.name) && !wantsAll) continue; // reported once, by the newest of its name
    if (choice.outcomes.size && !choice.outcomes.has(row.verdict ?? "none")) continue;
    if (words.length) {
      const text = `${row.name} ${row.owner} ${row.state} ${row.reason} ${row.target}`.toLowerCase();
      if (!words.every((word) => text.includes(word))) continue;
    }
    found.push(row);
  }
  const order = ORDERS[choice.order] ?? ORDERS.urgent;
  return found.sort((a, b) => order(a, b) || a.submitted - b.submitted);
}

function remember() {
  const parts = new URLSearchParams();
  if (choice.search) parts.set("search", choice.search);
  if (choice.order !== "urgent") parts.set("order", choice.order);
  for (const outcome of choice.outcomes) parts.append("outcome", outcome);
  for (const key of choice.groups) parts.append("group", key);
  history.replaceState(null, "", parts.size ? `#${parts}` : location.pathname);
}

function recall() {
  const parts = new URLSearchParams(location.hash.slice(1));
  choice.search = parts.get("search") ?? "";
  choice.order = parts.get("order") in ORDERS ? parts.get("order") : "urgent";
  choice.outcomes = new Set(parts.getAll("outcome").filter((one) => OUTCOMES.includes(one)));
  choice.groups = new Set(parts.getAll("group"));
  $("search").value = choice.search;
  $("order").value = choice.order;
}

// ---------------------------------------------------------------------------------------------------- drawing

function cell(label, kind, ...inside) {
  return html("td", { "data-label": label, class: kind || null }, ...inside);
}

function bar(row) {
  const time = row.finished ?? now();
  const span = row.deadline === null ? null : (row.deadline - row.submitted) / DEADLINE;
  const x = (moment) => (moment === null ? WIDTH : Math.min(Math.max(((moment - row.submitted) / span) * WIDTH, 0), WIDTH)).toFixed(1);
  const parts = [svg("rect", { class: "track", x: 0, y: 5, width: WIDTH, height: 6, rx: 3 })];
  if (span === null) {
    if (row.progress !== null) parts.push(svg("rect", { class: "done", x: 0, y: 5, width: row.progress * WIDTH, height: 6, rx: 3 }));
    return svg("svg", { class: "bar", viewBox: `0 0 ${WIDTH} 16`, "aria-hidden": "true" }, ...parts);
  }
  parts.push(svg("rect", { class: "done", x: 0, y: 5, width: x(time), height: 6, rx: 3 }));
  if (row.finish && row.finished === null) {
    const [early, likely, late] = row.finish;
    parts.push(svg("rect", { class: "band", x: x(early), y: 3, width: Math.max(x(late) - x(early), 2).toFixed(1), height: 10, rx: 2 }));
    const at = x(likely);
    parts.push(svg("path", { class: "likely-end", d: `M${at} 2l5 6-5 6-5-6z` }));
  }
  if (row.finished !== null) parts.push(svg("circle", { class: "end", cx: x(row.finished), cy: 8, r: 4 }));
  parts.push(svg("path", { class: "due", d: `M${DEADLINE * WIDTH} 0V16` }));
  return svg("svg", { class: "bar", viewBox: `0 0 ${WIDTH} 16`, "aria-hidden": "true" }, ...parts);
}

/** Forecasts have two figures: below these seconds, they are rounded to so many. */
const STEPS = [[100, 1], [600, 10], [3600, 60], [36000, 600], [172800, 3600], [864000, 7200], [Infinity, 86400]];

function roughly(seconds) {
  const size = Math.abs(seconds);
  const [, step] = STEPS.find(([below]) => size < below) ?? [0, 1];
  return duration(step * Math.round(size / step));
}

function forecast(row) {
  if (row.finished !== null) {
    if (row.deadline === null) return `took ${duration(row.finished - row.submitted)}`;
    const left = row.deadline - row.finished;
    return left >= 0 ? `ended ${duration(left)} before` : `ended ${duration(left)} after`;
  }
  if (!row.finish) return row.deadline === null ? "no deadline" : row.verdict === null ? "too early to tell" : "no likely end";
  const [, likely] = row.finish;
  if (likely === null) return "beyond reach";
  if (row.deadline === null) return `likely in ${roughly(Math.max(likely - now(), 0))}`;
  const left = row.deadline - likely;
  return left >= 0 ? `${roughly(left)} to spare` : `${roughly(left)} late`;
}

function deadlineCell(row) {
  if (row.deadline === null) return cell("deadline", "n", html("span", { class: "soft" }, "none"));
  const date = dateOf(row.deadline);
  const parts = [html("time", { datetime: date.toISOString(), title: wholeDate.format(date) }, clock(row.deadline))];
  if (row.finished === null) {
    const left = row.deadline - now();
    parts.push(html("div", { class: "soft" }, left >= 0 ? `in ${duration(left)}` : `${duration(left)} ago`));
  }
  return cell("deadline", "n", ...parts);
}

function draw(row) {
  const earlier = [...pool.rows.values()].some((other) => other.name === row.name && other.submitted > row.submitted);
  const link = html("a", { href: `/jobs/${encodeURIComponent(row.name)}` }, row.name);
  const under = [row.owner, row.state, earlier ? "an earlier one" : "", row.restarts ? `${row.restarts} restart${row.restarts > 1 ? "s" : ""}` : ""];
  const value = [html("div", {}, row.value), html("div", { class: "soft", title: row.target }, row.target)];
  const devices = row.devices.length ? `on ${row.kind ? `${row.kind}:` : ""}${row.devices.join(", ")}` : "";
  const beside = row.beside.length ? `beside ${row.beside.join(" and ")}` : "";
  const shared = [beside, devices].filter(Boolean).map((words) => html("div", { class: "soft" }, words));
  const share = row.held > 0 ? [html("div", {}, row.share > 0 ? row.share.toFixed(2) : ""), ...shared] : [html("span", { class: "soft" }, "-")];
  const made = html(
    "tr",
    { class: row.finished === null ? (row.held > 0 ? "trains" : null) : "over" },
    html("th", { scope: "row", "data-label": "job" }, link, html("div", { class: "soft" }, under.filter(Boolean).join(" · "))),
    cell("outcome", "n", badge(row.verdict)),
    cell("to the deadline", "n", bar(row), html("div", { class: "soft" }, forecast(row))),
    cell("value", "", ...value),
    cell("share", "n", ...share),
    deadlineCell(row),
    cell("why", "why", html("span", { title: row.reason }, row.alert ? `${row.alert}; ${row.reason}` : row.reason)),
  );
  return made;
}

function show(changed, all) {
  const rows = chosen();
  const part = rows.slice(0, choice.limit);
  const keep = new Set(part.map((row) => row.key));
  for (const [key, { element }] of shown) {
    if (!keep.has(key)) {
      element.remove();
      shown.delete(key);
    }
  }
  let place = body.firstElementChild;
  for (const row of part) {
    let known = shown.get(row.key);
    if (!known || all || changed?.has(row.key)) {
      const element = draw(row);
      if (known) {
        const focused = known.element.contains(document.activeElement);
        if (known.element === place) place = element;
        known.element.replaceWith(element);
        if (focused) element.querySelector("a").focus();
      }
      known = { row, element };
      shown.set(row.key, known);
    }
    if (known.element === place) place = place.nextElementSibling;
    else body.insertBefore(known.element, place);
  }
  const more = $("more");
  more.hidden = rows.length <= choice.limit;
  more.textContent = `Show ${Math.min(STEP * 5, rows.length - choice.limit)} more of ${rows.length.toLocaleString()}`;
  const total = pool.rows.size;
  $("count").textContent = rows.length === total ? `${total.toLocaleString()} job${total === 1 ? "" : "s"}` : `${rows.length.toLocaleString()} of ${total.toLocaleString()} jobs`;
  if (!rows.length && !body.firstElementChild) {
    const folded = !choice.search && !choice.outcomes.size && total;
    const words = folded ? "All belong to groups, and are paused or have ended: tick their group." : total ? "No job is like that." : "No jobs yet. Submit some: lightning-core submit bundle.yaml";
    body.append(html("tr", { class: "nothing" }, html("td", { colspan: 7 }, words)));
  } else if (rows.length) body.querySelector(".nothing")?.remove();
}

function tiles() {
  const counts = {};
  let busy = 0;
  let next = null;
  const held = new Map();
  for (const row of pool.rows.values()) {
    counts[row.verdict ?? "none"] = (counts[row.verdict ?? "none"] ?? 0) + 1;
    if (row.finished !== null) continue;
    if (row.share > 0) for (const device of row.devices) held.set(device, (held.get(device) ?? 0) + row.share);
    if (row.deadline !== null && row.deadline > now() && (next === null || row.deadline < next.deadline)) next = row;
  }
  for (const share of held.values()) busy += Math.min(share, 1);
  const many = Array.isArray(pool.about.devices) ? pool.about.devices.length : pool.about.devices || 0;
  const found = [
    ["met", counts.met ?? 0],
    ["on course", counts.feasible ?? 0],
    ["at risk", counts["at risk"] ?? 0],
    ["infeasible", counts.infeasible ?? 0],
    ["missed or crashed", (counts.missed ?? 0) + (counts.crashed ?? 0)],
    ["devices in use", `${+busy.toFixed(1)} of ${many}`],
    ["next deadline", next ? duration(next.deadline - now()) : "-"],
  ];
  for (const line of pool.about.lines || []) {
    const [name, ...rest] = line.split(": ");
    found.push([name, rest.join(": ")]);
  }
  $("tiles").replaceChildren(...found.map(([name, value]) => html("div", {}, html("dt", {}, name), html("dd", {}, String(value)))));
}

function devices() {
  const about = pool.about.devices;
  const many = Array.isArray(about) ? about.length : about || 0;
  const names = Array.isArray(about) ? about : [...Array(many).keys()].map((k) => `device ${k}`);
  const kinds = pool.about.kinds ?? [];
  const held = names.map(() => []);
  for (const row of pool.rows.values()) {
    if (row.finished === null && row.held > 0) for (const device of row.devices) held[device]?.push(row);
  }
  const lost = new Map((pool.about.unavailable ?? []).map((one) => [one.device, one.why]));
  const MOST = 64;
  const boxes = held.slice(0, MOST).map((jobs, k) => {
    jobs.sort((a, b) => b.held - a.held);
    const parts = jobs.slice(0, 8).map((row) => {
      const beside = row.beside.length ? ` beside ${row.beside.join(" and ")}` : "";
      const kind = `part ${(row.verdict ?? "").replace(" ", "-")}${beside ? " beside" : ""}`;
      const told = beside || row.share > 0.995 ? "" : ` ${row.share.toFixed(2)}`;
      const part = html("a", { class: kind, href: `/jobs/${encodeURIComponent(row.name)}`, title: `${row.name}: ${row.share.toFixed(2)} of ${names[k]}${beside}` }, html("b", {}, row.name), told);
      part.style.flexGrow = row.held;
      return part;
    });
    const idle = 1 - jobs.reduce((sum, row) => sum + row.held, 0);
    if (idle > 0.005) {
      const rest = lost.has(k)
        ? html("span", { class: "part lost", title: lost.get(k) }, "unavailable")
        : html("span", { class: "part idle" }, jobs.length ? "" : "idle");
      rest.style.flexGrow = idle;
      parts.push(rest);
    }
    return html("div", { class: "box" }, html("span", { class: "soft name" }, kinds[k] ? `${kinds[k]}:${k}` : names[k]), html("div", { class: "parts" }, ...parts));
  });
  if (held.length > MOST) boxes.push(html("div", { class: "soft" }, `and ${held.length - MOST} more devices`));
  $("devices").replaceChildren(...boxes);
}

function chips() {
  const counts = {};
  for (const row of pool.rows.values()) counts[row.verdict ?? "none"] = (counts[row.verdict ?? "none"] ?? 0) + 1;
  for (const outcome of OUTCOMES) {
    let chip = document.querySelector(`#chips [value="${outcome}"]`)?.parentElement;
    if (!chip) {
      const box = html("input", { type: "checkbox", value: outcome });
      box.checked = choice.outcomes.has(outcome);
      box.addEventListener("change", () => {
        box.checked ? choice.outcomes.add(outcome) : choice.outcomes.delete(outcome);
        again();
      });
      chip = html("label", {}, box, html("span", { class: "words" }));
      $("chips").append(chip);
    }
    chip.hidden = !counts[outcome] && !choice.outcomes.has(outcome);
    chip.querySelector(".words").textContent = `${SYMBOLS[outcome] ?? "?"} ${outcome === "none" ? "no verdict yet" : outcome} ${counts[outcome] ?? 0}`;
  }
}

const keyOf = (owner, group) => `${owner}\n${group}`;

function groups() {
  const all = pool.groups.map((one) => ({ key: keyOf(one.owner, `${one.part} ${one.name}`), ...one }));
  const keys = new Set(all.map(({ key }) => key));
  for (const key of choice.groups) if (!keys.has(key)) choice.groups.delete(key);
  const leftOut = all.filter((one) => one.is_over && !choice.groups.has(one.key)).slice(MAX_ENDED);
  const owners = new Set(all.map(({ owner }) => owner));
  const known = new Map([...document.querySelectorAll("#groups label")].map((label) => [label.dataset.key, label]));
  $("groups").hidden = !all.length;
  let place = $("groups").querySelector("label");
  for (const { key, owner, part, name, words } of all.filter((one) => !leftOut.includes(one))) {
    let label = known.get(key);
    known.delete(key);
    if (!label) {
      const box = html("input", { type: "checkbox" });
      box.checked = choice.groups.has(key);
      box.addEventListener("change", () => {
        box.checked ? choice.groups.add(key) : choice.groups.delete(key);
        again();
      });
      label = html("label", { "data-key": key }, box, ` ${part} `, html("b", {}, name), html("span", { class: "words" }));
    }
    label.querySelector(".words").textContent = `${owners.size > 1 ? ` of ${owner || "-"}` : ""}: ${words}`;
    if (label === place) place = place.nextElementSibling;
    else $("groups").insertBefore(label, place ?? $("earlier"));
  }
  for (const label of known.values()) label.remove();
  $("earlier").hidden = !leftOut.length;
  $("earlier").textContent = `and ${leftOut.length} earlier`;
}

function again() {
  choice.limit = STEP;
  remember();
  show();
}

function everything(changed, all) {
  tiles();
  devices();
  chips();
  groups();
  show(changed, all);
}

first();
recall();
everything(null, true);
follow(everything);
$("search").addEventListener("input", (event) => {
  choice.search = event.target.value;
  again();
});
$("order").addEventListener("change", (event) => {
  choice.order = event.target.value;
  again();
});
$("more").addEventListener("click", () => {
  choice.limit += STEP * 5;
  show();
});
document.addEventListener("keydown", (event) => {
  if (event.key === "/" && !/input|select|textarea/i.test(event.target.tagName)) {
    event.preventDefault();
    $("search").focus();
  }
});
// Relative times advance between updates.
setInterval(() => {
  if (document.hidden) return;
  tiles();
  show(new Set([...shown.values()].filter(({ row }) => row.finished === null).slice(0, 100).map(({ row }) => row.key)));
}, 5000);
