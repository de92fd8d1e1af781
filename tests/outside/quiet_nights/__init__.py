"""Parts for pools that should be quiet at night, written against the public surface of lightning_core alone."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np

from lightning_core import Part, Pool
from lightning_core.core.answers import JobStatus
from lightning_core.core.arrays import LEVELS, FloatArray, IntArray
from lightning_core.core.control import Ask, Asker, Rights
from lightning_core.core.jobs import Job
from lightning_core.core.parts import Companion, Group, LivePage
from lightning_core.core.plans import JobView, Plan
from lightning_core.core.reasons import Reason, index
from lightning_core.core.saved_state import Stateful
from lightning_core.core.targets import Target
from lightning_core.history.history import History
from lightning_core.history.pool_scene import PoolScene
from lightning_core.parts.market.node_counts import NodeCounts
from lightning_core.planning.merged_plans import joined
from lightning_core.planning.sequencing import one_by_one
from lightning_core.scheduler.allocation import Caps
from lightning_core.scheduler.divider import Membership, PolicyOf


class HeaviestFirst(Stateful):
    """The heaviest job first, ties by lot: a policy that draws random numbers, as none of the library's may.

    Args:
        seed: Seed of the draws; None for another one in each process.
    """

    STATE = ("plans",)

    def __init__(self, seed: int | None = None) -> None:
        self._draw = np.random.default_rng(seed)
        self.plans = 0

    def plan(self, jobs: JobView, now: float) -> Plan:
        self.plans += 1
        plan = one_by_one(jobs, np.lexsort((self._draw.random(len(jobs)), -jobs.weight)), now)
        heaviest = plan.order[0]
        plan.codes[heaviest], plan.numbers[heaviest] = index("quiet.heaviest"), (len(jobs), 0.0)
        return plan


class StraightLine(Stateful):
    """The line through the first and the newest loss of each job, twice as far and half as far as its quantiles."""

    STATE = ("first", "newest")

    def __init__(self) -> None:
        self.first = np.zeros((0, 2))
        self.newest = np.zeros((0, 2))

    def grow(self, rows: int) -> None:
        more = np.zeros((rows - len(self.first), 2))
        self.first, self.newest = np.vstack([self.first, more]), np.vstack([self.newest, more])

    def observe(self, rows: IntArray, position: FloatArray, loss: FloatArray) -> None:
        self.newest[rows] = np.column_stack([position, loss])
        new = rows[self.first[rows, 0] == 0]
        self.first[new] = self.newest[new]

    def predict(self, rows: IntArray, position: FloatArray) -> FloatArray:
        first, newest = self.first[rows], self.newest[rows]
        with np.errstate(invalid="ignore", divide="ignore"):
            slope = (newest[:, 1] - first[:, 1]) / (newest[:, 0] - first[:, 0])
        return newest[:, 1] + slope * (position - newest[:, 0])

    def first_passage(self, rows: IntArray, threshold: FloatArray) -> FloatArray:
        first, newest = self.first[rows], self.newest[rows]
        with np.errstate(invalid="ignore", divide="ignore"):
            slope = (first[:, 1] - newest[:, 1]) / (newest[:, 0] - first[:, 0])
            likely = newest[:, 0] + (newest[:, 1] - threshold) / slope
        likely = np.where(slope > 0, np.maximum(likely, newest[:, 0]), np.where(slope <= 0, np.inf, np.nan))
        return likely[:, None] * 2.0 ** (2.0 * np.array(LEVELS) - 1.0)


@dataclass(frozen=True)
class Halving(Target):
    """Met once the loss has come down to a part of the first one that counts.

    Args:
        halves: How many times it must halve.
        start: Loss from which it counts.

    Raises:
        ValueError: If one is not positive.
    """

    KEY: ClassVar[str] = "halves"
    KEYS: ClassVar[tuple[str, ...]] = ("halves", "start")
    FORMS: ClassVar[tuple[str, ...]] = ("3 halvings of 2.3",)
    MAPPINGS: ClassVar[tuple[str, ...]] = ("{halves: N, start: L}",)

    halves: int
    start: float

    def __post_init__(self) -> None:
        if not (self.halves > 0 and self.start > 0):
            raise ValueError(f"halves and start must be positive, got {self.halves} and {self.start}")

    @classmethod
    def from_line(cls, text: str) -> Self | None:
        halves, said, start = text.partition(" halvings of ")
        return cls(int(halves), float(start)) if said else None

    @classmethod
    def from_terms(cls, terms: Mapping[str, Any]) -> Self | None:
        return cls(terms["halves"], terms["start"]) if terms.keys() == {"halves", "start"} else None

    def to_dict(self) -> dict[str, Any]:
        return {"halves": self.halves, "start": self.start}

    def __str__(self) -> str:
        return f"{self.halves} halvings of {self.start:g}"

    @property
    def quantity(self) -> str:
        return "loss"

    @property
    def goal(self) -> float:
        return float(self.start) * 0.5**self.halves

    @property
    def grows(self) -> bool:
        return False


@dataclass(frozen=True)
class NightBegan:
    """Event: it is night until so many events have passed."""

    events: int

    def __post_init__(self) -> None:
        if not (isinstance(self.events, int) and self.events > 0):
            raise ValueError(f"events must be a positive whole number, got {self.events!r}")


class Quiet(Stateful):
    """Holds all jobs but one from an event of its own on, for as many further events as that says.

    Args:
        spares: Name of a job that trains at night too.
    """

    STATE = ("left",)
    rights: ClassVar[Rights] = Rights("the quiet night", holds=True)

    def __init__(self, spares: str = "") -> None:
        self._spares = spares
        self.left = 0

    def handle(self, event: Any, now: float, pool: Any) -> Sequence[Ask]:
        if isinstance(event, NightBegan):
            self.left = event.events
        elif self.left:
            self.left -= 1
        by, names = Asker("quiet"), [name for name in pool.names() if name != self._spares]
        reason = Reason("part", (), f"it is night for {self.left} more events")
        return [Ask(name, by, hold=True, reason=reason) if self.left else Ask(name, by) for name in names]

    def wakeup(self) -> float | None:
        return None


class Shelf:
    """A provisioner of machines that are there already."""

    def __init__(self, pool: str, resource: str, words: Sequence[str]) -> None:
        self.nodes = NodeCounts()

    def scale_to(self, wanted: NodeCounts) -> None:
        self.nodes = wanted

    def close(self) -> None:
        self.nodes = NodeCounts()


def _add_commands(command: Callable[..., argparse.ArgumentParser]) -> None:
    night = command("night", _night, "hold the jobs of a pool for a while")
    night.add_argument("events", type=int)
    night.add_argument("--pool", default="auto")


def _night(arguments: argparse.Namespace) -> int:
    with Pool.connect(arguments.pool) as pool:
        pool.tell("quiet.night_began", events=arguments.events)
    print("it is night")
    return 0


def _halves(job: JobStatus) -> str:
    if job.value is None or not isinstance(job.target, Halving):
        return ""
    return f"{np.log2(job.target.start / job.value):.1f} of {job.target.halves}"


def _panel(history: History) -> list[list[str]]:
    return [["job", "came to"], *([job.name, str(job.verdict)] for job in history.jobs)]


def _nights(scene: PoolScene) -> str:
    return f"{len(scene.jobs)} jobs sleep <well>"


def _start_owl(folder: Path, mood: str) -> str:
    (folder / "owl").write_text(mood)
    return f"an owl is {mood}"


def _end_owl(folder: Path) -> None:
    (folder / "owl").unlink(missing_ok=True)


@dataclass(frozen=True)
class Noise:
    """What the package keeps with a job: the room in which it is heard, and how loud it is."""

    room: str
    decibels: int = 30

    def __post_init__(self) -> None:
        if not 0 <= self.decibels <= 120:
            raise ValueError(f"decibels must be from 0 to 120, got {self.decibels}")


def _room(data: Mapping[str, Any]) -> str:
    return str(data["room"])


def _loudness(jobs: Sequence[JobStatus]) -> str:
    return f"{len(jobs)} jobs, up to {max(job.parts['quiet'].get('decibels', 30) for job in jobs)} dB"


class Halves(Stateful):
    """A divider: heavy jobs and light ones, of which each kind may have half of the devices.

    Args:
        terms: ``{"heavy": W}``: jobs of this weight or a higher one are heavy.
    """

    STATE = ("rounds",)
    group_word = "half"

    def __init__(self, terms: Mapping[str, float]) -> None:
        self.heavy = terms["heavy"]
        self.rounds = 0
        self.devices = 0

    @classmethod
    def read(cls, section: Any, problems: Any, devices: int | None) -> dict[str, Any]:
        weight = problems.read(float, section)
        return {} if weight is None else {"heavy": weight}

    @classmethod
    def section(cls, terms: Mapping[str, Any]) -> Any:
        return terms["heavy"]

    def join(self, settings: Any) -> None:
        if settings.devices % 2:
            raise ValueError(f"halves: devices must be even, got {settings.devices}")
        self.devices = settings.devices // 2

    def admit(self, job: Job) -> Membership:
        return Membership("heavy" if job.weight >= self.heavy else "light", self.devices)

    def plan(self, round: Any, view: JobView, policy_of: PolicyOf) -> tuple[Plan, Caps]:
        self.rounds += 1
        heavy = view.weight >= self.heavy
        rows = {name: np.flatnonzero(heavy == is_heavy) for name, is_heavy in (("light", False), ("heavy", True))}
        rows = {name: its for name, its in rows.items() if len(its)}
        plans = [
            round.only(its).plan(policy_of(name), replace(view.only(its), devices=self.devices))
            for name, its in rows.items()
        ]
        for plan in plans:
            plan.share[plan.order[self.devices :]] = 0.0  # each job here is for one device
        of = heavy.astype(int) if len(rows) == 2 else np.zeros(len(view), int)
        devices = [float(self.devices)] * len(rows)
        return joined(view, plans, list(rows.values())), Caps(of.tolist(), devices, devices)

    def count(self, table: Any, now: float) -> None: ...

    def check(self, table: Any) -> None:
        for is_heavy in (False, True):
            rows = [row for row in table.active_rows().tolist() if (table.weight[row] >= self.heavy) == is_heavy]
            held = sum(table.share[row] * len(table.home[row]) for row in rows)
            assert held <= self.devices + 1e-6, f"one half holds {held} devices"

    def describe(self, jobs: Iterable[Job], now: float) -> list[dict[str, Any]]:
        heavy = [job.weight >= self.heavy for job in jobs]
        return [{"half": "heavy", "jobs": heavy.count(True)}, {"half": "light", "jobs": heavy.count(False)}]


part = Part(
    policies={"heaviest_first": HeaviestFirst},
    estimators={"straight_line": StraightLine},
    controllers={"quiet": Quiet},
    dividers={"halves": Halves},
    reasons={"heaviest": "heaviest of {0:# job}"},
    members={"provisioners": {"shelf": Shelf}},
    targets=[Halving],
    events={"night_began": NightBegan},
    commands=_add_commands,
    columns={"halvings": _halves},
    panels={"What became of them": _panel},
    pages={"Nights": LivePage(_nights)},
    companions={"owl": Companion(_start_owl, _end_owl, default="awake", help="keep an owl beside the pool")},
    job_data=Noise,
    group=Group(_room, _loudness),
    askers={"neighbour": Rights("the neighbour", holds=True, sizes=True, rank=30)},
)
