"""A run as a picture, from its journal: the share of the devices of each job, and its distance from its target."""

from __future__ import annotations

from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np

from lightning_core.core.answers import Verdict
from lightning_core.core.arrays import FloatArray
from lightning_core.history.history import History
from lightning_core.history.job_history import JobHistory
from lightning_core.report.figure_file import save_figure
from lightning_core.report.gantt import colour
from lightning_core.storage.journals.journal import Journal
from lightning_core.view.text import clean

TIMES = 1200
# A logarithmic axis has no zero, and one beyond these shows nothing of the other jobs.
MIN_DISTANCE, MAX_DISTANCE = 1e-3, 1e9


def draw(journal: Journal, path: Path) -> None:
    """Draw a run.

    Args:
        journal: Journal of the run.
        path: Path of the file to write; its suffix selects the format.
    """
    history = History.read(journal)
    figure, (above, below) = plt.subplots(
        2, 1, figsize=(10, 6), sharex=True, height_ratios=(2, 3), layout="constrained"
    )
    clock = np.linspace(0.0, history.last, TIMES)
    colours = [colour(index) for index in range(len(history.jobs))]
    devices = history.settings.devices
    if history.jobs:
        held = [_held(job, clock) for job in history.jobs]
        above.stackplot(clock, *held, colors=colours, step="post", linewidth=0)
    met = sum(job.verdict is Verdict.MET for job in history.jobs)
    above.set(
        ylabel="share of the device" if devices == 1 else "devices held",
        ylim=(0, devices),
        title=f"{history.settings.policy}: {met} of {len(history.jobs)} targets met in time",
    )
    for job, own in zip(history.jobs, colours, strict=True):
        points = _distance(job)
        below.plot(points[:, 0], points[:, 1], color=own, linewidth=1.2, label=_label(history, job))
        below.axvline(job.deadline, color=own, linestyle=":", linewidth=1)
        if job.verdict is Verdict.MET:
            below.plot([job.ended], [1.0], "o", color=own)
    below.axhline(1.0, color="black", linewidth=0.8)
    below.set(yscale="log", xlabel="seconds (dotted: deadlines)", ylabel="loss over target loss")
    below.set_xlim(0, max(history.last, 1e-3))
    if history.jobs:
        for text in below.legend(loc="upper right", fontsize="small", ncols=2).get_texts():
            text.set_parse_math(False)  # a name is not a formula
    save_figure(figure, path, dpi=110)
    plt.close(figure)


def _held(job: JobHistory, clock: FloatArray) -> FloatArray:
    """Return the number of devices, or the share of one, that a job held at each time of ``clock``, shape ``(n,)``."""
    levels = [(held.time, held.share * max(len(held.devices), 1)) for held in job.grants]
    if job.ended is not None:
        levels.append((job.ended, 0.0))
    times = np.array([time for time, _ in levels])
    values = np.array([0.0, *(level for _, level in levels)])
    return values[np.searchsorted(times, clock, side="right")]


def _distance(job: JobHistory) -> FloatArray:
    """Return times, and the loss over the target loss (or all batches over the batches done), shape ``(n, 2)``."""
    target = job.job.target
    if not target.observes:
        distances = [(done.time, target.goal / done.batches) for done in job.progress if done.batches]
    else:
        goal, losses = target.threshold, [target.falling(point.value) for point in job.points]
        # For a target that is not above zero, the distance is measured in units of the distance of the first loss.
        unit = goal if goal > 0 or not losses else abs(losses[0] - goal) or 1.0
        distances = [(p.time, 1.0 + (loss - goal) / unit) for p, loss in zip(job.points, losses, strict=True)]
    found = np.array(distances, float).reshape(-1, 2)
    found[:, 1] = np.clip(found[:, 1], MIN_DISTANCE, MAX_DISTANCE)
    return found


def _label(history: History, job: JobHistory) -> str:
    return clean(history.label(job)) + (f" ({job.verdict})" if job.ended is not None else "")
