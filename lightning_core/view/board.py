"""The live board: who holds the devices, and one line a job with its forecast on the way to its deadline.

As many columns as the terminal has room for, the most telling first; a job never takes a second line.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Literal

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, Group
from rich.segment import Segment
from rich.table import Table
from rich.text import Text

from lightning_core.durations import format_duration
from lightning_core.types import JobStatus, State, Verdict
from lightning_core.view.progress import COLUMNS, SYMBOLS, line
from lightning_core.view.text import clean

# Okabe and Ito's colours, which the colour-blind tell apart.
GOOD, RISK, BAD = "#009e73", "#e69f00", "#d55e00"
STYLES = {
    Verdict.FEASIBLE: GOOD,
    Verdict.MET: f"bold {GOOD}",
    Verdict.AT_RISK: RISK,
    Verdict.INFEASIBLE: BAD,
    Verdict.MISSED: f"bold {BAD}",
    Verdict.CRASHED: f"bold {BAD}",
}
# The columns that are given up last come first; the bar and the reason take the room that is left.
FIRST = ("job", "verdict", "time / deadline", "share", "state", "loss / target", "device", "forecast end", "batches/s")
NUMBERS = ("loss / target", "time / deadline", "share", "batches/s", "forecast end")
BAR, REASON, LONGEST_BAR = 16, 24, 40
LONGEST_NAME, SHORT_NAME, NARROW = 24, 14, 100
MOST_DEVICES, MOST_FAULTS = 8, 3
GAP = 2
# The deadline stands here on every bar, so that one look down the column tells who is late.
DEADLINE = 0.78
ASCII = str.maketrans("━●▒◆┃·»✓✕†…", "=o~*|.>+x!.")


class Board:
    """What the live view shows, fitted to the width that there is when it is printed.

    Args:
        now: scheduler time.
        jobs: in the order of submission.
        title: of the pool, such as ``edf``.
        devices: of the pool; as many as are held if it is not known.
        one_screen: whether it must fit the height of the terminal, too.
    """

    def __init__(
        self, now: float, jobs: Sequence[JobStatus], title: str = "", devices: int = 0, *, one_screen: bool = False
    ) -> None:
        self._now, self._jobs, self._title, self._one_screen = now, jobs, title, one_screen
        self._devices = devices or 1 + max((device for job in jobs for device in job.devices), default=0)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Segment]:
        faults = self._faults()
        above = 2 + min(self._devices, MOST_DEVICES + 1) + len(faults)
        jobs, more = self._fitting(console.height - above - 1 if self._one_screen else None)
        head, devices = self._header(), self._held()
        wide = Text("   ").join(devices)
        lines: list[Text | Table] = [head, *([wide] if wide.cell_len <= options.max_width else devices)]
        lines.append(self._table(jobs, options))
        if more:
            lines.append(Text(more, style="dim"))
        lines += faults
        for text in lines:
            if isinstance(text, Text):
                text.no_wrap, text.overflow = True, "ellipsis"
        for words, style, control in console.render(Group(*lines), options):
            if options.ascii_only:
                words = words.translate(ASCII).encode("ascii", "replace").decode()
            yield Segment(words, style, control)

    def _header(self) -> Text:
        states = [line(self._now, job)[1] for job in self._jobs]
        text = Text(clean(self._title), style="bold")
        text.append(f"  {self._devices} device{'s' * (self._devices != 1)}  {format_duration(self._now)}", style="")
        for verdict in Verdict:
            if number := sum(job.verdict is verdict for job in self._jobs):
                text.append(f"  {SYMBOLS[verdict]} {number} {verdict}", style=STYLES.get(verdict, "dim"))
        for state in ("running", "recovering", "queued", "held", "released", "paused"):
            if state in states:
                text.append(f"  {states.count(state)} {state}", style=RISK if state == "recovering" else "dim")
        return text

    def _held(self) -> list[Text]:
        found = []
        for device in range(min(self._devices, MOST_DEVICES)):
            holders = [job for job in self._jobs if device in job.devices and job.share > 0]
            names = ", ".join(f"{clean(job.name)} {job.share:.2f}" for job in holders)
            found.append(Text.assemble((f"device {device}: ", "dim"), (names, "") if names else ("idle", "dim italic")))
        if self._devices > MOST_DEVICES:
            held = {device for job in self._jobs if job.share > 0 for device in job.devices}
            idle = self._devices - len(held)
            found.append(Text(f"and {self._devices - MOST_DEVICES} devices more; {idle} of all are idle", style="dim"))
        return found

    def _faults(self) -> list[Text]:
        """Of who is about to come back a line of its own: the story is longer than a column."""
        back = [job for job in self._jobs if job.state is State.RECOVERING]
        return [
            Text.assemble((f"✕ {clean(job.name)}: ", RISK), line(self._now, job)[COLUMNS.index("reason")])
            for job in back[:MOST_FAULTS]
        ]

    def _fitting(self, room: int | None) -> tuple[Sequence[JobStatus], str]:
        """As many jobs as there are lines: those that have ended make room first, then the last."""
        if room is None or len(self._jobs) <= max(room, 1):
            return self._jobs, ""
        going_first = sorted(self._jobs, key=lambda job: job.state is State.ENDED)
        shown = {job.name for job in going_first[: max(room - 1, 1)]}
        rest = [job for job in self._jobs if job.name not in shown]
        ended = sum(job.state is State.ENDED for job in rest)
        return [job for job in self._jobs if job.name in shown], f"and {len(rest)} more, {ended} of them ended"

    def _table(self, jobs: Sequence[JobStatus], options: ConsoleOptions) -> Table:
        cells = [dict(zip(COLUMNS, line(self._now, job), strict=True)) for job in jobs]
        longest = LONGEST_NAME if options.max_width >= NARROW else SHORT_NAME
        newest = {job.name: job.submitted_at for job in self._jobs}
        for row, job in zip(cells, jobs, strict=True):
            name = row["job"] if newest[job.name] == job.submitted_at else f"{row['job']} (earlier)"
            row["job"] = name if cell_len(name) <= longest else name[: longest - 1] + "…"
            row["verdict"] = "-" if job.verdict is None else f"{SYMBOLS[job.verdict]} {job.verdict}"
        columns, bar, reason = _fit(cells, options.max_width)
        table = Table(box=None, pad_edge=False, padding=(0, GAP, 0, 0), header_style="bold")
        for column in columns:
            justify: Literal["right", "left"] = "right" if column in NUMBERS else "left"
            width = {"now to deadline": bar, "reason": reason}.get(column)
            table.add_column(column, justify=justify, no_wrap=True, overflow="ellipsis", width=width)
        for row, job in zip(cells, jobs, strict=True):
            texts = {column: Text(words) for column, words in row.items()}
            if job.state is State.RECOVERING:
                texts["state"].style = RISK
            texts["verdict"].style = STYLES.get(job.verdict, "dim") if job.verdict is not None else "dim"
            texts["now to deadline"] = bar_of(self._now, job, bar)
            table.add_row(*(texts[column] for column in columns))
        return table


def _fit(cells: list[dict[str, str]], width: int) -> tuple[list[str], int, int]:
    """Columns that there is room for in their order, and the widths of the bar and the reason."""
    wide = {name: max([cell_len(name), *(cell_len(row[name]) for row in cells)]) for name in FIRST}
    wide["now to deadline"], wide["reason"] = BAR, REASON
    room, chosen = width + GAP, set[str]()  # no gap behind the last column
    for name in (*FIRST[:2], "now to deadline", *FIRST[2:5], "reason", *FIRST[5:]):
        if wide[name] + GAP <= room or name == "job":
            chosen.add(name)
            room -= wide[name] + GAP
    room = max(room, 0)
    if "reason" not in chosen:
        bar, reason = BAR + room, 0
    else:  # half of the room for each; what the longest reason does not need goes to the bar
        longest = max([len("reason"), *(cell_len(row["reason"]) for row in cells)])
        reason = min(longest, REASON + room - min(room // 2, LONGEST_BAR - BAR))
        bar = BAR + REASON + room - reason
    bar = min(bar, LONGEST_BAR)
    order = ["job", "state", "verdict", "now to deadline", "time / deadline", "forecast end", "share", "device",
             "loss / target", "batches/s", "reason"]  # fmt: skip
    return [name for name in order if name in chosen], bar, reason


def bar_of(now: float, job: JobStatus, width: int) -> Text:
    """The job on its way: time gone, forecast end from early to late, deadline.

    Args:
        now: scheduler time.
        job: to show.
        width: in characters.
    """
    until = now if job.finished_at is None else job.finished_at
    start, style = job.submitted_at, "" if job.verdict is None else STYLES.get(job.verdict, "dim")
    # A job that goes on after its deadline must still fit.
    unit = max((job.deadline - start) / (DEADLINE * width), (until - start) / (width - 1.5), 1e-9)

    def place(time: float) -> int:
        return int(min(max(time - start, 0.0) / unit, width - 1))

    cells: list[tuple[str, str]] = [("·", "dim")] * width
    for at in range(place(job.deadline), width):
        cells[at] = (" ", "")
    if job.finish is not None:
        early, likely, late = job.finish
        for at in range(place(max(early, now)), place(late) + 1):
            cells[at] = ("▒", style)
        for at in range(place(until)):
            cells[at] = ("━", "")
        cells[place(job.deadline)] = ("┃", "bold")
        beyond = (likely - start) / unit >= width
        cells[place(likely)] = ("»" if beyond else "◆", f"bold {style}".strip())
    else:
        for at in range(place(until)):
            cells[at] = ("━", "")
        cells[place(job.deadline)] = ("┃", "bold")
    if job.state is State.ENDED and job.verdict is not None:
        cells[place(until)] = (SYMBOLS[job.verdict], style)
    elif job.finish is None or place(until) != place(job.finish[1]):
        cells[place(until)] = ("●", "bold")
    return Text.assemble(*cells)
