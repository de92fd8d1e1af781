"""What jobs have and need of their devices' memory is shown where it is known."""

from __future__ import annotations

import io
import re

import pytest
from rich.cells import cell_len
from rich.console import Console

from lightning_core.core.answers import JobStatus
from lightning_core.core.events import ExitCause, Report, Submit, Tick, WorkerExited
from lightning_core.core.jobs import Job
from lightning_core.core.reported import MemoryUse
from lightning_core.core.targets import BatchTarget
from lightning_core.report.live_table import live_table
from lightning_core.scheduler.scheduler import Scheduler
from lightning_core.scheduler.settings import Settings
from lightning_core.view.board import Board
from lightning_core.view.progress import PlainView

GIB = 2**30


def some_jobs() -> list[JobStatus]:
    scheduler = Scheduler(Settings("uniform", devices=2, device_memory=24 * GIB))
    jobs = (
        Job("vit", 600.0, BatchTarget(500), memory=9 * GIB),
        Job("cnn", 600.0, BatchTarget(500)),
        Job("new", 600.0, BatchTarget(500)),
    )
    scheduler.handle(Submit(jobs), 0.0)
    scheduler.handle(Report("vit", 1, 1, 1, 20, 1.0, memory=MemoryUse(4 * GIB, 4 * GIB)), 10.0)
    scheduler.handle(Report("cnn", 1, 1, 1, 20, 1.0, memory=MemoryUse(6 * GIB, 6 * GIB)), 10.0)
    scheduler.handle(Report("new", 1, 1, 1, 0, 0.0), 10.0)
    scheduler.handle(Tick(), 11.0)
    return scheduler.status()


def shown(jobs: list[JobStatus], width: int, owner: str | None = None) -> list[str]:
    out = io.StringIO()
    board = Board(11.0, jobs, "uniform", 2, device_memory=24 * GIB, owner=owner)
    Console(file=out, width=width, color_system=None).print(board)
    return out.getvalue().splitlines()


def test_a_job_shows_what_it_has_and_what_it_needs_beyond() -> None:
    lines = shown(some_jobs(), 240)
    [head] = [line for line in lines if line.startswith("job ")]
    column = re.split("  +", head).index("memory")
    cells = {line.split()[0]: re.split("  +", line)[column].strip() for line in lines[lines.index(head) + 1 :]}
    assert cells == {"vit": "4GiB / 9GiB", "cnn": "6GiB", "new": "-"}


def test_a_narrow_terminal_shows_memory_below_the_job() -> None:
    text = "\n".join(shown(some_jobs(), 80))
    assert "1.00 of device 0, 4GiB / 9GiB of memory: on time" in text
    assert ", - of memory" not in text


def test_devices_show_how_much_of_them_is_needed() -> None:
    jobs = some_jobs()
    needs = {job.name: job.memory_needed or 0 for job in jobs}
    lines = shown(jobs, 240)[1].split("   ")
    assert len(lines) == 2
    for device, line in enumerate(lines):
        there = [job.name for job in jobs if device in job.devices]
        total = sum(needs[name] for name in there)
        assert line.endswith(f", {total // GIB:.0f}GiB of 24GiB") == bool(total), line
    # Jobs of other owners are not in the list, and what they need would be missing.
    assert " of 24GiB" not in "\n".join(shown(jobs, 240, owner="ann"))


def test_a_job_that_ran_out_of_memory_needs_more_than_was_said() -> None:
    scheduler = Scheduler(Settings("uniform", device_memory=24 * GIB))
    scheduler.handle(Submit((Job("a", 600.0, BatchTarget(500), memory=9 * GIB),)), 0.0)
    scheduler.handle(Report("a", 1, 1, 1, 20, 1.0, memory=MemoryUse(4 * GIB, 4 * GIB)), 10.0)
    [before] = scheduler.status()
    scheduler.handle(WorkerExited("a", 1, ExitCause.OUT_OF_MEMORY), 11.0)
    [after] = scheduler.status()
    assert (before.memory, before.memory_needed) == (4 * GIB, 9 * GIB)
    assert (after.memory, after.memory_needed) == (None, None)


@pytest.mark.parametrize("width", [20, 40, 80, 100, 120, 160, 200])
def test_no_line_is_wider_than_the_terminal(width: int) -> None:
    assert max(map(cell_len, shown(some_jobs(), width))) <= width


def test_nothing_is_said_of_memory_where_none_is_known() -> None:
    scheduler = Scheduler(Settings("uniform"))
    scheduler.handle(Submit((Job("a", 600.0, BatchTarget(500)),)), 0.0)
    jobs = scheduler.status()
    assert "memory" not in "\n".join(shown(jobs, 240))
    assert "memory" not in live_table(1.0, jobs, {})
    out = io.StringIO()
    PlainView(out).update(1.0, jobs)
    assert "memory" not in out.getvalue()


def test_logs_and_notebooks_show_memory_too() -> None:
    out = io.StringIO()
    PlainView(out).update(11.0, some_jobs())
    assert ", 4GiB / 9GiB of memory," in out.getvalue()
    assert "4GiB / 9GiB" in live_table(11.0, some_jobs(), {})
