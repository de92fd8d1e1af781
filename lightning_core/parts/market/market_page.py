"""The live page of a pool on a market: offers, nodes, the cost of each job, and reasons."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from lightning_core.core.durations import format_duration
from lightning_core.core.parts import Html
from lightning_core.history.history import History
from lightning_core.history.pool_scene import PoolScene
from lightning_core.parts.market.cloud_events import IntervalEnded, NodesWanted
from lightning_core.parts.market.cloud_line import trouble_line
from lightning_core.parts.market.market_history import MarketHistory
from lightning_core.parts.market.market_tables import money_by_job, offers, table
from lightning_core.report.job_card import shortened
from lightning_core.report.svg import Scale, boxes, escape, line, number
from lightning_core.view.text import clean

# Maximum intervals in the charts and in the table, changes of requests, and jobs: the newest.
MAX_DRAWN, MAX_ROWS, MAX_WANTED, MAX_JOBS = 400, 50, 20, 200
LEFT, MARGIN = 50, 10
PRICE_TOP, PRICE_BOTTOM, NODES_TOP, NODES_BOTTOM, HEIGHT = 24, 104, 136, 236, 262

Box = tuple[float, float, float, float]
"""Left, top, width and height in pixels."""


def draw(scene: PoolScene) -> Html:
    """Return the content of the page."""
    history = scene.history
    rows = [answer for _, answer in _told(history) if isinstance(answer, IntervalEnded)]
    return Html(
        f"{_now(_described(scene))}"
        f'<section class="panel"><h2>Price and nodes</h2>{_charts(rows, scene.width)}</section>'
        f"{_panel('On offer', offers(history, scene.now))}{_panel('Money by job', money_by_job(history))}"
        f'<section class="panel"><h2>Requested nodes, and why</h2>{_wanted(history)}</section>'
        f'<section class="panel"><h2>Jobs</h2>{_jobs(scene)}</section>'
        f'<details class="panel"><summary>Intervals</summary>{_intervals(rows)}</details>'
    )


def _told(history: History) -> list[tuple[float, NodesWanted | IntervalEnded]]:
    market: MarketHistory | None = history.parts.get("market")
    return [] if market is None else market.cloud


def _described(scene: PoolScene) -> Mapping[str, Any]:
    described: Mapping[str, Any] = scene.about.get("controllers", {}).get("market") or {}
    return described


def _panel(title: str, content: str) -> str:
    return f'<section class="panel"><h2>{title}</h2>{content}</section>' if content else ""


def _now(cloud: Mapping[str, Any]) -> str:
    if not cloud:
        return '<p class="soft">Nothing is known of its nodes yet.</p>'
    tiles = {
        "spot nodes": f"{cloud['spot']} of {cloud['wanted_spot']} wanted",
        "on-demand nodes": f"{cloud['on_demand']} of {cloud['wanted_on_demand']} wanted",
        "spent": f"{cloud['spent']:.4g}",
        "left to spend": "no limit" if cloud["money"] is None else f"{cloud['money']:.4g}",
    }
    shown = "".join(f"<div><dt>{name}</dt><dd>{escape(value)}</dd></div>" for name, value in tiles.items())
    trouble = f'<p class="trouble" role="alert">{escape(trouble_line(cloud))}</p>' if cloud["trouble"] else ""
    return f'{trouble}<dl class="tiles">{shown}</dl><p>Wanted because of {shortened(clean(cloud["reason"]))}.</p>'


def _charts(rows: Sequence[IntervalEnded], across: int) -> str:
    """Return the price of a spot node above, and the nodes on offer and held below, by interval."""
    if not rows:
        return '<p class="soft">No interval has ended yet.</p>'
    shown, right = rows[-MAX_DRAWN:], across - MARGIN
    first, last = shown[0].number, shown[-1].number + 1
    x = Scale(first, last, LEFT, right)
    price = Scale(0.0, 1.1 * max(row.price for row in shown) or 1.0, PRICE_BOTTOM, PRICE_TOP)
    most = max(max(row.available, row.spot + row.on_demand) for row in shown) or 1
    nodes = Scale(0.0, 1.1 * most, NODES_BOTTOM, NODES_TOP)
    step = x(first + 1) - x(first)
    stairs = [(x(edge), price(row.price)) for row in shown for edge in (row.number, row.number + 1)]
    offered = [(x(edge), nodes(row.available)) for row in shown for edge in (row.number, row.number + 1)]
    spot, on_demand = list[Box](), list[Box]()
    for row in shown:
        left, width, middle, top = x(row.number), step, nodes(row.spot), nodes(row.spot + row.on_demand)
        spot.append((left, middle, width, NODES_BOTTOM - middle))
        on_demand.append((left, top, width, middle - top))
    paid = sum(row.cost for row in rows)
    words = f"{len(rows)} intervals, {paid:.4g} paid"
    found = [f'<svg class="chart" viewBox="0 0 {across} {HEIGHT}" role="img" aria-label="{escape(words)}">']
    for scale, title, bottom in ((price, "price of a spot node", PRICE_BOTTOM), (nodes, "nodes", NODES_BOTTOM)):
        top = bottom - (PRICE_BOTTOM - PRICE_TOP if bottom == PRICE_BOTTOM else NODES_BOTTOM - NODES_TOP)
        found.append(f'<text class="tick" x="{LEFT}" y="{top - 8}">{title}</text>')
        for value in scale.ticks(3):
            y = number(scale(value))
            found.append(f'<path class="grid" d="M{LEFT} {y}H{right}"/>')
            found.append(f'<text class="tick" x="{LEFT - 5}" y="{y}" dy="4" text-anchor="end">{value:.4g}</text>')
    for value in x.ticks(6):
        anchor = "middle" if x(value) < right - 16 else "end"
        at = f'x="{number(x(value))}" y="{NODES_BOTTOM + 16}" text-anchor="{anchor}"'
        found.append(f'<text class="tick" {at}>{value:g}</text>')
    found += [
        f'<path class="spot" d="{boxes(spot)}"/><path class="demand" d="{boxes(on_demand)}"/>',
        f'<path class="curve" d="{line(stairs)}"/><path class="offered" d="{line(offered)}"/></svg>',
    ]
    legend = "".join(
        f'<li><svg viewBox="0 0 34 14" aria-hidden="true">{sign}</svg><span>{what}</span></li>'
        for sign, what in (
            ('<path class="spot" d="M0 1H34V13H0z"/>', "spot nodes held"),
            ('<path class="demand" d="M0 1H34V13H0z"/>', "on-demand nodes held, above them"),
            ('<path class="offered" d="M0 7H34"/>', "spot nodes on offer"),
        )
    )
    note = f'<p class="soft">{escape(words)}; the axis counts intervals.</p>'
    return f'{"".join(found)}{note}<ul class="legend">{legend}</ul>'


def _wanted(history: History) -> str:
    found = [(at, answer) for at, answer in _told(history) if isinstance(answer, NodesWanted)][-MAX_WANTED:][::-1]
    rows = [[format_duration(at), str(one.spot), str(one.on_demand), str(one.reason)] for at, one in found]
    return table(("after", "spot", "on demand", "why"), rows) if rows else '<p class="soft">Nothing yet.</p>'


def _jobs(scene: PoolScene) -> str:
    """Return the jobs with their spot policies: that of all jobs, or the one that was chosen for each."""
    of_all = scene.about.get("settings", {}).get("controllers", {}).get("market", {}).get("policy", "")
    found = [(job, str(job.notes.get("market", of_all))) for job in scene.jobs]
    rows = []
    for job, policy in [pair for pair in found if pair[1]][::-1][:MAX_JOBS]:
        verdict = "no verdict yet" if job.verdict is None else str(job.verdict)
        rows.append([clean(job.name), verdict, f"{job.batches:,}", clean(policy)])
    return table(("job", "outcome", "batches", "spot policy"), rows) if rows else '<p class="soft">No job is on it.</p>'


def _intervals(rows: Sequence[IntervalEnded]) -> str:
    if not rows:
        return '<p class="soft">None has ended yet.</p>'
    names = ("number", "price", "available", "spot", "on_demand", "used", "cost", "batches", "failures", "lost")
    shown = [
        [
            f"{value:.4g}" if isinstance(value, float) else f"{value:,}"
            for value in (getattr(row, name) for name in names)
        ]
        for row in rows[::-1][:MAX_ROWS]
    ]
    more = f'<p class="soft">The newest {MAX_ROWS} of {len(rows):,}.</p>' if len(rows) > MAX_ROWS else ""
    return table([name.replace("_", " ") for name in names], shown) + more
