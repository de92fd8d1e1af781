"""Pictures of runs towards their deadlines."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from matplotlib.figure import Figure

from benchmarks.live.decor_runs import CHANGED_AT, CHANGED_TO, CORES, Run


def courses(runs: Sequence[Run], folder: Path) -> None:
    """Draw progress, its ramp and devices over time (DECOR-NN's figures 2 to 5), one picture per kind and model.

    Args:
        runs: Runs, of which the first of each setting is drawn.
        folder: Folder of the pictures, created if needed.
    """
    folder.mkdir(parents=True, exist_ok=True)
    for kind, model in dict.fromkeys((run.setting.kind, run.setting.model) for run in runs):
        some = {run.setting: run for run in reversed(runs) if (run.setting.kind, run.setting.model) == (kind, model)}
        some = dict(reversed(some.items()))
        figure = Figure(figsize=(9, 2.2 * len(some)), layout="constrained")
        for axis, run in zip(figure.subplots(len(some), 1, squeeze=False)[:, 0], some.values(), strict=True):
            _course(axis, run, CORES if kind == "cpu" else 1)
        figure.savefig(folder / f"{kind}-{model}.png", dpi=110)


def _course(axis, run: Run, each: int) -> None:  # type: ignore[no-untyped-def]
    setting = run.setting
    times = [moment.now for moment in run.course]
    axis.plot(times, [moment.progress for moment in run.course], color="#1f5f8b", lw=1.6, label="progress, %")
    if setting.changed:
        at = next(k for k, moment in enumerate(run.course) if moment.progress >= 100 * CHANGED_AT)
        before = run.deadline / CHANGED_TO
        kink = times[at], 100 * times[at] / before
        axis.plot([0, kink[0]], [0, kink[1]], color="#888888", lw=1, ls="--", label="ramp")
        axis.plot([kink[0], run.deadline], [run.course[at].progress, 100], color="#888888", lw=1, ls="--")
    else:
        axis.plot([0, setting.alpha * run.deadline], [0, 100], color="#888888", lw=1, ls="--", label="ramp")
    axis.axvline(run.deadline, color="#c1440e", lw=1)
    axis.set_ylim(0, 105)
    axis.set_ylabel("progress, %")
    words = [f"d_c {setting.tightness:g}", f"alpha {setting.alpha:g}"]
    words += ["deadline cut to 80 %"] * setting.changed + ["another process on half a core"] * setting.neighbour
    axis.set_title(f"{', '.join(words)}: {run.error:+.2f} %", fontsize=9, loc="left")
    right = axis.twinx()
    right.step(times, [each * moment.devices for moment in run.course], where="post", color="#e8a33d", lw=1.2)
    right.set_ylabel("cores" if setting.kind == "cpu" else "devices", color="#8a6d3b")
    right.set_ylim(0, 2.2)
    axis.spines[["top"]].set_visible(False)
    right.spines[["top"]].set_visible(False)
