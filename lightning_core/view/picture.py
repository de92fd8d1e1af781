"""A run as a picture, from its journal: who had what share of the device, and how far each job was from its target."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np

from lightning_core.codec import decode_directives, decode_event
from lightning_core.journal import Journal
from lightning_core.types import End, FloatArray, Job, LossTarget, Report, Submit, Verdict

STEPS = 1200


def draw(journal: Journal, path: Path) -> None:
    """Writes the picture.

    Args:
        journal: of a run.
        path: of the file; its ending says the format.
    """
    jobs: dict[str, Job] = {}
    starts: dict[str, float] = {}
    shares: dict[str, list[tuple[float, float]]] = defaultdict(list)
    done: dict[str, dict[int, tuple[float, float]]] = defaultdict(dict)
    ends: dict[str, tuple[float, Verdict]] = {}
    heard: dict[str, float] = defaultdict(float)
    last = 0.0
    for entry in journal.entries():
        event, last = decode_event(entry.event), entry.now
        if isinstance(event, Submit):
            for job in event.jobs:
                jobs.setdefault(job.name, job)
                starts.setdefault(job.name, entry.now)
        if isinstance(event, Report) and event.job in jobs:
            target = jobs[event.job].target
            if isinstance(target, LossTarget):
                # A report brings all cells since the one before: they lie between the two.
                new = [cell for cell in event.cells if cell.number not in done[event.job]]
                times = np.linspace(heard[event.job], entry.now, len(new) + 1)[1:]
                done[event.job] |= {c.number: (t, c.loss / target.at_most) for c, t in zip(new, times, strict=True)}
            elif event.batches:
                done[event.job][event.number] = (entry.now, target.batches / event.batches)
            heard[event.job] = entry.now
        for directive in decode_directives(entry.directives):
            shares[directive.job].append((entry.now, 0.0 if isinstance(directive, End) else directive.duty))
            if isinstance(directive, End):
                ends[directive.job] = (entry.now, directive.verdict)

    figure, (above, below) = plt.subplots(
        2, 1, figsize=(10, 6), sharex=True, height_ratios=(2, 3), layout="constrained"
    )
    clock = np.linspace(0.0, last, STEPS)
    colours = plt.get_cmap("tab10").colors  # type: ignore[attr-defined]
    held = [_steps(shares[name], clock) for name in jobs]
    above.stackplot(clock, *held, labels=list(jobs), colors=colours, step="post", linewidth=0)
    above.set(ylabel="share of the device", ylim=(0, 1), title=f"{journal.settings().policy}: {_met(ends)}")
    for k, name in enumerate(jobs):
        points = np.array([done[name][number] for number in sorted(done[name])]).reshape(-1, 2)
        below.plot(points[:, 0], points[:, 1], color=colours[k % 10], linewidth=1.2, label=_label(name, ends))
        below.axvline(starts[name] + jobs[name].deadline, color=colours[k % 10], linestyle=":", linewidth=1)
        if name in ends and ends[name][1] is Verdict.MET:
            below.plot(ends[name][0], 1.0, "o", color=colours[k % 10])
    below.axhline(1.0, color="black", linewidth=0.8)
    below.set(yscale="log", xlabel="seconds (dotted: deadlines)", ylabel="loss over target loss", xlim=(0, last))
    below.legend(loc="upper right", fontsize="small", ncols=2)
    figure.savefig(path, dpi=110)
    plt.close(figure)


def _steps(levels: list[tuple[float, float]], clock: FloatArray) -> FloatArray:
    """The level that holds at each time of ``clock``, shape ``(n,)``."""
    times = np.array([time for time, _ in levels])
    values = np.array([0.0, *(level for _, level in levels)])
    return values[np.searchsorted(times, clock, side="right")]


def _label(name: str, ends: dict[str, tuple[float, Verdict]]) -> str:
    # A name is plain text: no formulas.
    return f"{name} ({ends[name][1]})".replace("$", r"\$") if name in ends else name.replace("$", r"\$")


def _met(ends: dict[str, tuple[float, Verdict]]) -> str:
    return f"{sum(verdict is Verdict.MET for _, verdict in ends.values())} of {len(ends)} targets met in time"
