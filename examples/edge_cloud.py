"""Places jobs on three small nodes at the edge and a larger one in the cloud, and moves one when its demand grows.

Run from the repository's root: ``python examples/edge_cloud.py``. What it does:

1. starts a Ray cluster of four nodes on this machine, labelled with their locations;
2. plans the day: the location of each job in each period, with a GPU at the edge for 0.8 times its price in the cloud;
3. trains the jobs, digit models under Lightning's Trainer, at their planned locations; ``buses`` pauses at night;
4. increases the sample rate of ``cameras`` by a fifth: it needs two devices instead of one, which no node at the edge
   has, so it moves to the cloud and resumes from the batch at which it left;
5. reduces the sample rate again: one device is released, and the job stays where it is.

With ``--forecast`` the rate rises a little in each step of three seconds instead. The pool forecasts it, and moves
``cameras`` before one device is too few.

Each training records the node and process in which it runs; the picture shows which job trained where, and when.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from lightning_core.cluster.local_machines import MEMORY, local_machines, make_token  # noqa: E402

make_token()  # before Ray is imported, which reads it once

import lightning.pytorch as pl  # noqa: E402
import ray  # noqa: E402
import torch  # noqa: E402
from matplotlib.figure import Figure  # noqa: E402
from sklearn.datasets import load_digits  # noqa: E402
from torch.utils.data import TensorDataset  # noqa: E402

from lightning_core.callbacks import ElasticLoader  # noqa: E402
from lightning_core.cluster.bundle import Bundle  # noqa: E402
from lightning_core.cluster.cluster import Cluster  # noqa: E402
from lightning_core.cluster.device_groups import LOCATION_LABEL  # noqa: E402
from lightning_core.core.answers import JobStatus  # noqa: E402
from lightning_core.core.commands import Cancel  # noqa: E402
from lightning_core.core.events import PartEvent  # noqa: E402
from lightning_core.parts.edge_cloud.day_plan import DemandSeen, PlanGiven  # noqa: E402
from lightning_core.parts.edge_cloud.placement import (  # noqa: E402
    Cloud,
    Demands,
    EdgePrices,
    Gpu,
    Level,
    Node,
    PlacedJob,
    TaskPlacement,
    Weights,
    plan,
)
from lightning_core.parts.edge_cloud.placement.reconfigurer import ReconfigurationLimits  # noqa: E402
from lightning_core.parts.edge_cloud.plan_data import plan_of  # noqa: E402
from lightning_core.report.figure_file import save_figure  # noqa: E402
from lightning_core.report.gantt import colour  # noqa: E402
from lightning_core.server.clocks import wall_clock  # noqa: E402

# Devices of each location; the cloud has as many as are needed.
EDGE, CLOUD = {"harbour": 1, "station": 1, "campus": 1}, 2
RATE, SURGE = 15.0, 1.2
NIGHT, DAY = 0, 1
# A period is longer than the example: it begins the day when the trainings have come far enough, and not by the clock.
PERIOD = 3600.0
# A device trains 1,600 samples a second: 100 epochs of 15 samples a second fit on one, of 18 on two.
DEMANDS = Demands(
    periods=("night", "day"),
    gpus={"device": Gpu(4.0)},
    levels={"fp32": Level(0.9, {"device": 1600.0})},
    nodes={name: Node({"device": float(count)}) for name, count in EDGE.items()},
    jobs={
        "cameras": PlacedJob((1, 1), RATE, 2.4),
        "buses": PlacedJob((0, 1), RATE, 0.8),
        "meters": PlacedJob((1, 1), RATE, 0.4, moves=False),
    },
    cloud=Cloud(delay=40.0),
    edge=EdgePrices(0.8),
)
# With forecasts: seconds of a step, and by how much the rate rises in each.
STEP, RISE = 3.0, 0.2
BATCH, EVERY = 32, 10
STEP_TIMEOUT = 120.0


class Digits(pl.LightningDataModule):
    """Handwritten digits, in an order that is the same on any number of devices."""

    def train_dataloader(self) -> ElasticLoader:
        digits: Any = load_digits()
        images = torch.tensor(digits.images, dtype=torch.float32)[:, None] / 16
        return ElasticLoader(TensorDataset(images, torch.tensor(digits.target)), batch_size=BATCH)


class Whereabouts(pl.Callback):
    """Records node, process, batch and loss of a training.

    Args:
        path: Path of the file, one line per record.
    """

    def __init__(self, path: str) -> None:
        self.path = Path(path)

    def on_train_batch_end(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        time.sleep(0.02)  # this machine may have fewer cores than trainings
        if trainer.is_global_zero and trainer.global_step % EVERY == 0:
            node = ray.get_runtime_context().get_node_id()
            line = {"node": node, "process": os.getpid(), "ranks": trainer.world_size, "step": trainer.global_step,
                    "loss": float(outputs["loss"]), "time": time.time()}  # fmt: skip
            with self.path.open("a") as file:
                file.write(json.dumps(line) + "\n")


class Story:
    """The steps of the example; updated by the run with the status of the jobs.

    It tells the scheduler of the plan and of what arrives. Which job moves is decided there.
    """

    def __init__(
        self, cluster: Cluster, placement: TaskPlacement, notes: Path, names: dict[str, str], *, forecast: bool
    ) -> None:
        self.cluster, self.placement, self.notes, self.names = cluster, placement, notes, names
        self.forecast = forecast
        self.told: list[dict[str, Any]] = []
        self._steps, self._jobs = self._tell(), dict[str, JobStatus]()
        self._over = False

    def update(self, now: float, jobs: list[JobStatus]) -> None:
        """Take in the status of the jobs and go on with the next step."""
        self._jobs = {job.name: job for job in jobs}
        if jobs and not self._over:
            self._over = next(self._steps, "over") == "over"

    def close(self) -> None:
        """End the run."""

    def _tell(self) -> Iterator[None]:
        self._give(NIGHT)
        self._say("the night begins: buses pauses")
        yield from self._until(lambda: self._trains("cameras", 20) and self._trains("meters", 20))
        self._say_where("cameras", "meters")
        self._give(DAY)
        self._say("the day begins")
        yield from self._until(lambda: self._trains("buses", 20))
        self._say_where("cameras", "meters", "buses")
        yield from self._rise() if self.forecast else self._surge()
        for name in DEMANDS.jobs:
            self.cluster.tell(Cancel(name))

    def _surge(self) -> Iterator[None]:
        """Raise the rate at once, and lower it again."""
        for words, rate, ranks in (("a fifth more samples for cameras", RATE * SURGE, 2),
                                   ("as many samples as before", RATE, 1)):  # fmt: skip
            self._change(words, rate)
            yield from self._until(lambda wanted=ranks: self._trains_on(wanted))  # type: ignore[misc]
            self._say_where("cameras", "meters", "buses")

    def _rise(self) -> Iterator[None]:
        """Raise the rate in each step until the job trains on two devices, which the plan gives it by its forecast."""
        self._give(DAY, forecast="trend", step=STEP)
        began = time.monotonic()
        for number in itertools.count():
            rate, step = RATE + RISE * number, began + STEP * number
            yield from self._until(lambda begins=step: time.monotonic() >= begins + STEP / 4)  # type: ignore[misc]
            self.cluster.tell(PartEvent.of(DemandSeen((("cameras", rate),))))
            yield from self._until(lambda begins=step: time.monotonic() >= begins + STEP)  # type: ignore[misc]
            _, location, devices, reason = self._asked("cameras")
            if devices == 2 and "rate" not in self.told[-1]:
                self._say(f"{rate:g} samples/s of cameras, more in each step: to {location} (2): {reason}")
                self.told.append({"rate": rate, "to": location, "devices": devices, "reason": reason})
            if self._trains_on(2):
                self._say_where("cameras", "meters", "buses")
                return

    def _trains_on(self, devices: int) -> bool:
        return bool(self._latest("cameras")[-1]["ranks"] == devices) and self._trains("cameras", 30)

    def _give(self, period: int, **how: Any) -> None:
        """Give the plan such that a period begins now; ``how`` says how it is changed."""
        clock = wall_clock()
        begins = clock.seconds + clock.utc_offset - period * PERIOD
        limits = ReconfigurationLimits(cost=2.0)
        given = PlanGiven(plan_of(self.placement, PERIOD, begins, on_wall=True, limits=limits, **how))
        self.cluster.tell(PartEvent.of(given))

    def _change(self, words: str, rate: float) -> None:
        _, before, had, _ = self._asked("cameras")
        self.cluster.tell(PartEvent.of(DemandSeen((("cameras", rate),))))
        _, after, has, reason = self._asked("cameras")
        self._say(f"{words}: cameras from {before} ({had}) to {after} ({has}): {reason}")
        self.told.append({"from": before, "to": after, "devices": has, "reason": reason})

    def _asked(self, name: str) -> list[Any]:
        """Return what the plan asks of a job: whether it is held, location, devices, reason."""
        about: Any = ray.get(self.cluster.scheduler.about.remote())  # type: ignore[union-attr]
        asked: list[Any] = about["controllers"]["plan"]["asked"][name]
        return asked

    def _until(self, holds: Callable[[], bool]) -> Iterator[None]:
        end = time.monotonic() + STEP_TIMEOUT
        while not holds():
            if time.monotonic() > end:
                raise TimeoutError(f"not reached within {STEP_TIMEOUT:.0f} s: {self._jobs}")
            yield

    def _trains(self, name: str, steps: int) -> bool:
        """Return whether a job has done so many steps at its present location."""
        latest = self._latest(name)
        return len(latest) > 1 and latest[-1]["step"] - latest[0]["step"] >= steps

    def _latest(self, name: str) -> list[dict[str, Any]]:
        """Return a job's records since it last changed node, process or number of devices."""
        notes = self.notes_of(name)
        last = [(note["node"], note["process"], note["ranks"]) for note in notes][-1:]
        first = next((k for k in range(len(notes), 0, -1) if [_where(notes[k - 1])] != last), 0)
        return notes[first:] or [{"ranks": 0, "step": 0}]

    def notes_of(self, name: str) -> list[dict[str, Any]]:
        """Return all that a job recorded."""
        path = self.notes / name
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    def _say_where(self, *names: str) -> None:
        for name in names:
            latest = self._latest(name)
            location = self.names[latest[-1]["node"]]
            head = f"{name}: {location}, process {latest[-1]['process']}, {latest[-1]['ranks']} devices"
            self._say(
                f"  {head}, steps {latest[0]['step']} to {latest[-1]['step']}, loss {latest[0]['loss']:.3f} to "
                f"{latest[-1]['loss']:.3f}"
            )
            self.told.append({"job": name, "location": location, **latest[-1], "began": latest[0]["step"]})

    @staticmethod
    def _say(words: str) -> None:
        print(words, flush=True)


def _where(note: dict[str, Any]) -> tuple[Any, ...]:
    return note["node"], note["process"], note["ranks"]


def _job(name: str, notes: Path, location: str) -> dict[str, Any]:
    return {
        "seed_everything": 1,
        "model": {"class_path": "examples.digits.Cnn"},
        "data": {"class_path": "examples.edge_cloud.Digits"},
        "trainer": {
            "logger": False, "max_epochs": -1,
            "callbacks": [{"class_path": "examples.edge_cloud.Whereabouts", "init_args": {"path": str(notes / name)}}],
        },
        "deadline": "1h", "target": {"batches": 10**6}, "min_devices": 1, "max_devices": 2, "location": location,
    }  # fmt: skip


def draw(notes: dict[str, list[dict[str, Any]]], names: dict[str, str], path: Path) -> None:
    """Draw which job trained at which location, and when; a bar is as high as its devices are many."""
    figure = Figure(figsize=(8, 2.8), layout="constrained")
    axes = figure.subplots()
    locations = list(names.values())
    began = min(note["time"] for told in notes.values() for note in told)
    for row, told in enumerate(notes.values()):
        for (node, _, ranks), part in itertools.groupby(told, _where):
            times = [note["time"] - began for note in part]
            axes.barh(row, max(times[-1] - times[0], 0.3), 0.35 * ranks, times[0],
                      color=colour(locations.index(names[node])))  # fmt: skip
    for number, location in enumerate(locations):
        axes.barh(0, 0, color=colour(number), label=location)
    axes.set_yticks(range(len(notes)), list(notes))
    axes.set(xlabel="seconds (a bar twice as high: two devices)", ylim=(len(notes) - 0.5, -0.5))
    figure.legend(loc="outside upper center", ncols=len(locations), frameon=False)
    save_figure(figure, path)


def main(arguments: argparse.Namespace) -> None:
    solution = plan(DEMANDS, Weights(cost=0.89, accuracy=0.1, moves=0.01))
    placement = solution.placement
    print("the plan: " + "; ".join(
        f"{task.job} " + ", ".join("paused" if choice is None else choice.location for choice in choices)
        for task, choices in placement.served.items()
    ))  # fmt: skip
    locations = {**EDGE, "cloud": CLOUD}
    with local_machines() as machines, tempfile.TemporaryDirectory(prefix="lc-") as own:
        names: dict[str, str] = {}
        for name, devices in locations.items():
            node = machines.add_node(
                num_cpus=1, resources={"device": devices}, labels={LOCATION_LABEL: name}, object_store_memory=MEMORY
            )
            names[node.node_id] = name
        first = {
            task.job: next(choice.location for choice in choices if choice)
            for task, choices in placement.served.items()
        }
        notes = Path(own) / "notes"
        notes.mkdir()
        bundle = Bundle.from_dict({
            "pool": {"devices": locations, "controllers": {"plan": {}}}, "policy": "fifo", "period": "0.5s",
            "jobs": {name: _job(name, notes, first[name]) for name in DEMANDS.jobs},
        }, ROOT)  # fmt: skip
        with Cluster.of(bundle) as cluster:
            story = Story(cluster, placement, notes, names, forecast=arguments.forecast)
            bundle.run(run_dir=arguments.run_dir or Path(own) / "run", cluster=cluster, watcher=story)
        draw({name: story.notes_of(name) for name in DEMANDS.jobs}, names, arguments.picture)
        print(f"which job trained where: {arguments.picture}")
    if arguments.json:
        arguments.json.write_text(json.dumps(story.told, indent=2) + "\n")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--forecast", action="store_true", help="move by a forecast of the rate, before it is there")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the steps to FILE as JSON")
    parser.add_argument("--run-dir", type=Path, metavar="DIR", help="run folder; kept")
    parser.add_argument("--picture", type=Path, default=Path("edge_cloud.png"), metavar="FILE",
                        help="the picture (default edge_cloud.png)")  # fmt: skip
    main(parser.parse_args())
