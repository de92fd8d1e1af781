"""Tables of a simulated bundle: its jobs, and their outcomes under each policy."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial

from lightning_core.core.answers import Verdict
from lightning_core.core.durations import format_duration
from lightning_core.core.names import listed
from lightning_core.simulation.bundle_curves import LOAD, PlayedBundle
from lightning_core.simulation.scenario import Outcome
from lightning_core.view.job_line import SYMBOLS

ALIKE = "all kinds of devices as alike: neither paces nor earlier runs say how fast they are"
# Remark on each made-up part.
MADE_UP_WORDS = {
    "curve": "made up: curve: another task's, scaled to reach the target; this compares policies, and forecasts no job",
    "time": f"made up: time: {LOAD:.0%} of the job's fair part of the pool, for nothing says how long it takes",
}


def introduce(bundle: PlayedBundle) -> list[str]:
    """Return a line for each job with its recording and the time that it needs and has, then the possible maximum."""
    rows = [
        (
            "job",
            "recording",
            "batches/s",
            "needs",
            "has",
            "made up" if any(played.made_up for played in bundle.jobs) else "",
        )
    ]
    for played in bundle.jobs:
        job = played.given.job
        has = format_duration(job.deadline - job.begin)
        speed, needs = f"{played.given.throughput:.3g}", format_duration(played.needs)
        rows.append((job.name, played.recording, speed, needs, has, played.made_up))
    lines = _table(rows)
    lines += _kinds(bundle)
    lines += [words for what, words in MADE_UP_WORDS.items() if any(what in played.made_up for played in bundle.jobs)]
    if bundle.ceiling is not None:
        lines.append(f"at most {bundle.ceiling} of {len(bundle.jobs)} could be met if the curves were known in advance")
    return lines


def _kinds(bundle: PlayedBundle) -> list[str]:
    """Return how fast each job is on each kind of devices, and what says so; nothing where all are alike."""
    if not bundle.settings.kinds:
        return []
    lines = [
        f"{played.given.job.name}: {', '.join(f'{pace:.3g} on {kind}' for kind, pace in played.given.paces.items())} "
        f"times as fast ({'as its paces say' if played.paces_from == 'given' else 'from earlier runs'})"
        for played in bundle.jobs
        if played.paces_from
    ]
    alike = [played.given.job.name for played in bundle.jobs if not played.paces_from]
    return [*lines, f"{listed(alike)}: {ALIKE}"] if alike else lines


def compare(bundle: PlayedBundle, outcomes: Mapping[str, Outcome]) -> list[str]:
    """Return a line for each job with its end under each policy, then the totals."""
    ends = []
    for number, played in enumerate(bundle.jobs):
        job = played.given.job
        row = [job.name, format_duration(job.deadline)]
        for outcome in outcomes.values():
            told = outcome.jobs[number]
            assert told.verdict is not None  # it was played to its end
            symbol = SYMBOLS[told.verdict]
            row.append(
                f"{symbol} {format_duration(told.finished_at or 0.0) if told.verdict is Verdict.MET else told.verdict}"
            )
        ends.append(row)
    sums: dict[str, Callable[[Outcome], str]] = {
        "met": lambda outcome: f"{outcome.met} of {len(outcome.jobs)}",
        "switches": lambda outcome: str(outcome.switches),
        "all ended after": lambda outcome: format_duration(outcome.summary.wall),
        "device busy": lambda outcome: f"{100 * outcome.summary.figures['device_use']:.0f} %",
    }
    figures = [outcome.nodes.figures for outcome in outcomes.values() if outcome.nodes is not None]
    for name in dict.fromkeys(name for one in figures for name in one):
        sums[name] = partial(_figure, name)
    if len({played.given.job.weight for played in bundle.jobs}) > 1:
        sums = {"met, by weight": lambda outcome: f"{_weight_met(outcome):.4g}", **sums}
    return _table(
        [
            ["job", "deadline", *outcomes],
            *ends,
            ["" for _ in range(2 + len(outcomes))],
            *([name, "", *map(say, outcomes.values())] for name, say in sums.items()),
        ]
    )


def _weight_met(outcome: Outcome) -> float:
    return sum(job.weight for job in outcome.summary.jobs if job.verdict is Verdict.MET)


def _figure(name: str, outcome: Outcome) -> str:
    """Return a figure of the nodes of a simulation; ``-`` where there is none."""
    return str(outcome.nodes.figures.get(name, "-"))


def _table(rows: Sequence[Sequence[str]]) -> list[str]:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
