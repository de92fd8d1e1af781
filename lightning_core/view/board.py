"""The live board: which job holds which device, and each job with its forecast on the way to its deadline.

Shows as many columns as fit the terminal, the most important first. A reason that does not fit stands below its job,
after the content of the columns that were left out.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from math import inf

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, Group
from rich.segment import Segment
from rich.text import Text

from lightning_core.core.answers import JobStatus, State, Verdict
from lightning_core.core.durations import format_duration
from lightning_core.core.limits import format_bytes
from lightning_core.view.group_lines import group_lines
from lightning_core.view.job_line import COLUMNS, SYMBOLS, line, telling
from lightning_core.view.text import clean

MAX_DEVICES = 8
# Style of problems; one of Okabe and Ito's colours, which colour-blind readers can tell apart.
RISK = "#e69f00"
# Okabe and Ito's palette, which colour-blind readers can tell apart.
GOOD, BAD = "#009e73", "#d55e00"
STYLES = {
    Verdict.FEASIBLE: GOOD,
    Verdict.MET: f"bold {GOOD}",
    Verdict.AT_RISK: RISK,
    Verdict.INFEASIBLE: BAD,
    Verdict.MISSED: f"bold {BAD}",
    Verdict.CRASHED: f"bold {BAD}",
}
# In the order of importance: the last ones are dropped first. The bar and the reason use the remaining room.
FIRST = ("job", "verdict", "time / deadline", "loss / target", "forecast", "now to deadline", "owner", "state", "share",
         "forecast end", "device", "memory", "batches/s")  # fmt: skip
ORDER = ("job", "owner", "state", "verdict", "now to deadline", "time / deadline", "forecast", "forecast end", "share",
         "device", "memory", "loss / target", "batches/s", "reason")  # fmt: skip
NUMBERS = ("loss / target", "time / deadline", "share", "memory", "batches/s", "forecast end", "forecast")
MIN_BAR, MAX_BAR = 16, 40
# A reason that would get fewer characters stands below its job.
MIN_REASON = 48
MAX_NAME, MAX_NAME_IF_NARROW, NARROW = 24, 14, 120
WELL = (Verdict.FEASIBLE, Verdict.MET)
MAX_FAULTS = 3
GAP = 2
# Position of the deadline on every bar, so that one look down the column shows which jobs are late.
DEADLINE = 0.78
ASCII = str.maketrans("━●▒◆┃·»✓✕†…", "=o~*|.>+x!.")


def device_lines(
    jobs: Sequence[JobStatus], devices: int, unavailable: Collection[int], device_memory: int | None, others: str,
    kinds: Sequence[str] = (),
) -> list[Text]:  # fmt: skip
    """Return the lines, and one more that counts the devices for which there is none.

    Args:
        jobs: Jobs of the pool.
        devices: Number of devices.
        unavailable: Devices that the scheduler does not plan on.
        device_memory: Bytes of each device's memory that jobs may have; None if unknown.
        others: Text that names the owners of hidden jobs; empty if there are none.
        kinds: Kind of each device; empty where all are alike.
    """
    nothing = f"idle, or {others}" if others else "idle"
    found = []
    for device in range(min(devices, MAX_DEVICES)):
        there = [job for job in jobs if device in job.devices]
        names = ", ".join(f"{clean(job.name)} {_part(job)}" for job in there if job.trains)
        empty = (nothing, "dim italic") if device not in unavailable else ("unavailable", RISK)
        what = clean(kinds[device]) if device < len(kinds) else "device"
        text = Text.assemble((f"{what} {device}: ", "dim"), (names, "") if names else empty)
        # Jobs of others are hidden. Held jobs keep their memory.
        needed = sum(job.memory_needed or 0.0 for job in there)
        if device_memory is not None and not others and needed:
            text.append(f", {format_bytes(needed)} of {format_bytes(device_memory)}", "dim")
        found.append(text)
    if devices > MAX_DEVICES:
        held = {device for job in jobs if job.trains for device in job.devices}
        lost = set(unavailable) - held
        idle = f"{devices - len(held) - len(lost)} of all are {nothing}"
        lost_too = f", {len(lost)} unavailable" if lost else ""
        found.append(Text(f"and {devices - MAX_DEVICES} devices more; {idle}{lost_too}", style="dim"))
    return found


def _part(job: JobStatus) -> str:
    """Return the share of a job that trains, or beside whom it does."""
    return f"{job.share:.2f}" if job.share > 0 else f"beside {clean(' and '.join(job.beside))}"


class Board:
    """The content of the live view, fitted to the width at which it is printed.

    Args:
        now: Scheduler time in seconds.
        jobs: Jobs in the order of submission.
        title: Title of the pool, such as ``edf``.
        devices: Number of devices of the pool; 0 for as many as are held.
        one_screen: Whether it must also fit the height of the terminal.
        only: Jobs that get a line; None for all.
        owner: Owner to whom all the jobs belong; None if those of all are shown.
        group: Group to which all the jobs belong, as ``(part, name)``; None if other jobs are shown too.
        unavailable: Devices that the scheduler does not plan on.
        device_memory: Bytes of each device's memory that jobs may have; None if unknown.
        kinds: Kind of each device; empty where all are alike.
    """

    def __init__(
        self,
        now: float,
        jobs: Sequence[JobStatus],
        title: str = "",
        devices: int = 0,
        *,
        one_screen: bool = False,
        only: Sequence[JobStatus] | None = None,
        owner: str | None = None,
        group: tuple[str, str] | None = None,
        unavailable: Collection[int] = (),
        device_memory: int | None = None,
        kinds: Sequence[str] = (),
    ) -> None:
        self._kinds = kinds
        self._now, self._jobs, self._title, self._one_screen = now, jobs, title, one_screen
        self._only = jobs if only is None else only
        self._owner, self._group, self._unavailable, self._device_memory = owner, group, unavailable, device_memory
        self._devices = devices or 1 + max((device for job in jobs for device in job.devices), default=0)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Segment]:
        faults, groups = self._faults(), [Text(words) for words in group_lines(self._jobs)]
        above = 2 + min(self._devices, MAX_DEVICES + 1) + len(faults) + len(groups)
        room = console.height - above - 1 if self._one_screen else None
        jobs, more = self._fitting(room)
        head = self._header()
        others = "another job's" if self._group is not None else "another owner's" if self._owner is not None else ""
        devices = device_lines(self._jobs, self._devices, self._unavailable, self._device_memory, others,
                               self._kinds)  # fmt: skip
        wide = Text("   ").join(devices)
        lines = [head, *([wide] if wide.cell_len <= options.max_width else devices)]
        left = None if room is None else max(room, 1) - len(jobs) - bool(more)
        lines += self._rows(jobs, console, options.max_width, left)
        if more:
            lines.append(Text(more, style="dim"))
        lines += groups + faults
        for text in lines:
            text.no_wrap, text.overflow = True, "ellipsis"
        for words, style, control in console.render(Group(*lines), options):
            if options.ascii_only:
                words = words.translate(ASCII).encode("ascii", "replace").decode()
            yield Segment(words, style, control)

    def _header(self) -> Text:
        states = [line(self._now, job)[COLUMNS.index("state")] for job in self._jobs]
        text = Text(clean(self._title), style="bold")
        if self._owner is not None:
            text.append(f"  jobs of {clean(self._owner)}", style="")
        if self._group is not None:
            text.append(f"  jobs of {clean(' '.join(self._group))}", style="")
        text.append(f"  {self._devices} device{'s' * (self._devices != 1)}  {format_duration(self._now)}", style="")
        for verdict in Verdict:
            if number := sum(job.verdict is verdict for job in self._jobs):
                text.append(f"  {SYMBOLS[verdict]} {number} {verdict}", style=STYLES.get(verdict, "dim"))
        for state in ("running", "recovering", "queued", "held", "released", "paused"):
            if state in states:
                text.append(f"  {states.count(state)} {state}", style=RISK if state == "recovering" else "dim")
        return text

    def _faults(self) -> list[Text]:
        """Return a line for each job that is about to come back: its reason is longer than a column."""
        back = [job for job in self._jobs if job.state is State.RECOVERING]
        return [
            Text.assemble((f"✕ {clean(job.name)}: ", RISK), line(self._now, job)[COLUMNS.index("reason")])
            for job in back[:MAX_FAULTS]
        ]

    def _fitting(self, room: int | None) -> tuple[Sequence[JobStatus], str]:
        """Return the jobs that fit, and a note on the rest: ended jobs are left out first, then the last ones."""
        if room is None or len(self._only) <= max(room, 1):
            return self._only, ""
        going_first = sorted(self._only, key=lambda job: job.state is State.ENDED)
        shown = {id(job) for job in going_first[: max(room - 1, 1)]}
        rest = [job for job in self._only if id(job) not in shown]
        ended = sum(job.state is State.ENDED for job in rest)
        return [job for job in self._only if id(job) in shown], f"and {len(rest)} more, {ended} of them ended"

    def _rows(self, jobs: Sequence[JobStatus], console: Console, width: int, left: int | None) -> list[Text]:
        """Return a header, then a line for each job, with its reason below where there is no room for it beside.

        Args:
            jobs: Jobs to show.
            console: Console to measure text with.
            width: Width in characters.
            left: Maximum number of lines for reasons; None for as many as they need.
        """
        if not jobs:  # existing ones have a line with their group
            return []
        cells = [dict(zip(COLUMNS, line(self._now, job), strict=True)) for job in jobs]
        max_name = MAX_NAME if width >= NARROW else MAX_NAME_IF_NARROW
        newest = {job.name: max(other.submitted_at for other in self._jobs if other.name == job.name) for job in jobs}
        for row, job in zip(cells, jobs, strict=True):
            name = row["job"] if newest[job.name] == job.submitted_at else f"{row['job']} (earlier)"
            row["job"] = name if cell_len(name) <= max_name else name[: max_name - 1] + "…"
            row["verdict"] = "-" if job.verdict is None else f"{SYMBOLS[job.verdict]} {job.verdict}"
            row["forecast"] = row["forecast end"].partition(" (")[0]
        wide = _fit(cells, width, telling(FIRST, self._only))
        below = [[] for _ in jobs] if "reason" in wide else self._below(cells, jobs, wide, console, width, left)
        lines = [_line(wide, {column: Text(column, "bold") for column in wide})]
        for row, job, reason in zip(cells, jobs, below, strict=True):
            texts = {column: Text(words) for column, words in row.items()}
            if job.state is State.RECOVERING:
                texts["state"].style = RISK
            texts["verdict"].style = STYLES.get(job.verdict, "dim") if job.verdict is not None else "dim"
            texts["now to deadline"] = bar_of(self._now, job, wide.get("now to deadline", MIN_BAR))
            lines += [_line(wide, texts), *reason]
        return lines

    def _below(
        self,
        cells: Sequence[dict[str, str]],
        jobs: Sequence[JobStatus],
        wide: Mapping[str, int],
        console: Console,
        width: int,
        left: int | None,
    ) -> list[list[Text]]:
        """Return the reasons; if there are too few lines, those of jobs in trouble come first."""
        found: list[list[Text]] = [[] for _ in jobs]
        for k in sorted(range(len(jobs)), key=lambda k: jobs[k].verdict in WELL):
            if left is not None and (left := left - 1) < 0:
                break
            words = _left_out(cells[k], jobs[k], wide)
            first, *rest = Text(words).wrap(console, max(width - GAP, 8)) or [Text("")]
            if left is None and rest:
                found[k] = [first, Text(" ".join(part.plain for part in rest))]
            else:
                found[k] = [Text(words)]
            for text in found[k]:
                text.rstrip()
            found[k] = [Text.assemble(" " * GAP, text) for text in found[k]]
        return found


def _left_out(row: Mapping[str, str], job: JobStatus, wide: Mapping[str, int]) -> str:
    """Return the content of the columns that do not fit, then the reason."""
    parts = [] if "state" in wide else [row["state"]]
    if "share" not in wide and job.trains:
        parts.append(f"{row['share']} {'of' if job.share > 0 else 'others on'} device {row['device']}")
    if "memory" not in wide and job.memory_needed is not None:
        parts.append(f"{row['memory']} of memory")
    if "loss / target" not in wide:
        parts.append(row["loss / target"])
    if not {"forecast", "forecast end"} & wide.keys() and job.finish is not None:
        parts.append(f"ends at {row['forecast']}")
    return ": ".join(filter(None, (", ".join(parts), row["reason"])))


def _line(wide: Mapping[str, int], texts: Mapping[str, Text]) -> Text:
    cells = []
    for column, width in wide.items():
        text = texts[column]
        text.truncate(width, overflow="ellipsis")
        space = " " * (width - text.cell_len)
        cells.append(Text.assemble(space, text) if column in NUMBERS else Text.assemble(text, space))
    joined = Text(" " * GAP).join(cells)
    joined.rstrip()
    return joined


def _fit(cells: Sequence[Mapping[str, str]], width: int, first: Sequence[str]) -> dict[str, int]:
    """Return the columns that fit, the first ones first, in the order in which they are shown, with their widths."""
    bar, reason = "now to deadline", "reason"
    wide = {
        name: max([cell_len(name), *(cell_len(row[name]) for row in cells)]) for name in (*first, reason) if name != bar
    }
    wide[bar] = max(MIN_BAR, len(bar))
    room, chosen = width + GAP, set[str]()  # no gap after the last column
    for name in first:
        instead = "forecast" if name == "forecast end" and "forecast" in chosen else ""
        more = wide[name] - wide[instead] if instead else wide[name] + GAP
        if more <= room or name == "job":
            chosen = (chosen | {name}) - {instead}
            room -= more
    if min(wide[reason], MIN_REASON) + GAP <= room:
        chosen.add(reason)
        wide[reason] = min(wide[reason], room - GAP)
        room -= wide[reason] + GAP
    if bar in chosen:
        wide[bar] = min(wide[bar] + max(room, 0), MAX_BAR)
    wide["job"] = min(wide["job"], width)
    return {name: wide[name] for name in ORDER if name in chosen}


def bar_of(now: float, job: JobStatus, width: int) -> Text:
    """Return a bar: time passed, forecast end from early to late, deadline.

    Args:
        now: Scheduler time in seconds.
        job: Job to show.
        width: Width in characters.
    """
    until = now if job.finished_at is None else job.finished_at
    start, style = job.submitted_at, "" if job.verdict is None else STYLES.get(job.verdict, "dim")
    # A job that continues after its deadline must still fit.
    span = (job.deadline if job.deadline < inf else until if job.finish is None else job.finish[2]) - start
    unit = max(span / (DEADLINE * width), (until - start) / (width - 1.5), 1e-9)

    def position(time: float) -> int:
        return int(min(max(time - start, 0.0) / unit, width - 1))

    def mark_deadline() -> None:
        if job.deadline < inf:
            cells[position(job.deadline)] = ("┃", "bold")

    cells: list[tuple[str, str]] = [("·", "dim")] * width
    for at in range(position(job.deadline), width):
        cells[at] = (" ", "")
    if job.finish is not None:
        early, likely, late = job.finish
        for at in range(position(max(early, now)), position(late) + 1):
            cells[at] = ("▒", style)
        for at in range(position(until)):
            cells[at] = ("━", "")
        mark_deadline()
        beyond = (likely - start) / unit >= width
        cells[position(likely)] = ("»" if beyond else "◆", f"bold {style}".strip())
    else:
        for at in range(position(until)):
            cells[at] = ("━", "")
        mark_deadline()
    if job.state is State.ENDED and job.verdict is not None:
        cells[position(until)] = (SYMBOLS[job.verdict], style)
    elif job.finish is None or position(until) != position(job.finish[1]):
        cells[position(until)] = ("●", "bold")
    return Text.assemble(*cells)
