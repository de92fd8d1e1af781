"""Measure four small trainings on one device: by turns, beside each other, unmanaged, and under MPS.

Each training is a Trainer in a process of its own, which is warm. They are of two kinds, two of each, and keep a GPU
busy for a small part of a batch. With a pool they join a scheduler without Ray (:mod:`benchmarks.gpu.served`), as
scripts do. Throughputs are parts of the training's own alone, measured before and after; their sum is the work that the
device does, 1 if the trainings merely take its time in turns.
"""

from __future__ import annotations

import logging
import math
import multiprocessing
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any, NamedTuple

import lightning.pytorch as pl
import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from benchmarks.common import Figures
from benchmarks.gpu.mps import CONTROL, NoMpsError, mps, variables
from benchmarks.gpu.served import Served
from lightning_core.core.jobs import Beside
from lightning_core.core.targets import BatchTarget
from lightning_core.scheduler.settings import Settings

# Seconds that a process may take beyond what it was asked for, and to begin.
PATIENCE, BEGINS = 20.0, 90.0
ENDLESS = 10**9
# Deadline of each of four trainings with equal work, as a multiple of its seconds alone: by turns two are in time.
ROOM = 2.4
# Seconds after the start that are left out, of those that join a pool.
START = 2.0


class Lengths(NamedTuple):
    """Seconds that are measured."""

    settle: float = 0.8
    """After the start, left out."""
    alone: float = 1.2
    together: float = 4.0
    forming: float = 12.0
    """Before it: while companies are tried."""
    work: float = 2.5
    """Of each training with a deadline, alone."""


LENGTHS = Lengths()


class _Small(pl.LightningModule):
    """A small net on random images of 16 x 16."""

    def __init__(self) -> None:
        super().__init__()
        self.net = self.make()

    def make(self) -> nn.Module:
        raise NotImplementedError

    def training_step(self, batch: list[torch.Tensor], batch_idx: int) -> torch.Tensor:
        return nn.functional.mse_loss(self.net(batch[0]).squeeze(1), batch[1])

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.01)

    def train_dataloader(self) -> DataLoader[Any]:
        return DataLoader(TensorDataset(torch.randn(6400, 1, 16, 16), torch.randn(6400)), batch_size=32)


class Perceptron(_Small):
    """Three linear layers."""

    def make(self) -> nn.Module:
        return nn.Sequential(
            nn.Flatten(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 1)
        )


class Convolution(_Small):
    """Two convolutions."""

    def make(self) -> nn.Module:
        return nn.Sequential(
            nn.Conv2d(1, 8, 3), nn.ReLU(), nn.Conv2d(8, 8, 3, 2), nn.ReLU(), nn.Flatten(), nn.Linear(288, 1)
        )


KINDS: tuple[type[pl.LightningModule], ...] = (Perceptron, Perceptron, Convolution, Convolution)


class Order(NamedTuple):
    """A training that a process is asked for."""

    job: str
    model: type[pl.LightningModule]
    until: float
    """When it ends, by the monotonic clock, which all processes of a machine share."""
    batches: int = ENDLESS
    """Batches after which it ends."""
    deadline: float | None = None
    """Seconds from its start; None for none."""
    pool: str = ""
    """Folder of the pool that it joins; empty for none."""


class Together(NamedTuple):
    """What became of trainings that were asked for at once."""

    began: float
    stamps: list[np.ndarray]
    """Ends of the batches of each."""
    companies: tuple[frozenset[str], ...] = ()
    """Jobs that trained beside each other at the end."""
    stood: float = 0.0
    """Seconds until they did."""

    def throughputs(self, seconds: float) -> list[float]:
        """Return the batches per second of each in the last seconds."""
        until = max(float(times[-1]) for times in self.stamps)
        return [float(np.count_nonzero(times > until - seconds)) / seconds for times in self.stamps]

    def met(self, batches: Sequence[int], deadline: float) -> int:
        """Return how many did their batches in time."""
        return sum(
            len(times) >= n and float(times[n - 1]) <= self.began + deadline
            for times, n in zip(self.stamps, batches, strict=True)
        )


class Until(pl.Callback):
    """Notes when each batch ended, and ends the training once it has done its batches or its time is over."""

    def __init__(self, until: float, batches: int) -> None:
        self._until, self._batches = until, batches
        self.times: list[float] = []

    def on_train_batch_end(self, trainer: pl.Trainer, *_: Any) -> None:
        over = len(self.times) + 1 >= self._batches
        if over and torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
            torch.cuda.synchronize()  # its last batch must be done
        self.times.append(time.monotonic())
        if over or self.times[-1] > self._until:
            trainer.should_stop = True


class Workers:
    """Warm processes that train when they are asked to.

    Args:
        models: Kind of training of each.
        gpu: Whether they train on the GPU, otherwise on the CPU.
        environment: Their environment variables beside those of this process.
    """

    def __init__(
        self,
        models: Sequence[type[pl.LightningModule]],
        gpu: bool,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self._models = models
        self._orders = list[Connection]()
        self._processes = list[Any]()
        made = multiprocessing.get_context("spawn")
        with _environment(environment or {}):
            for number in range(len(models)):
                ours, theirs = made.Pipe()
                process = made.Process(target=_work, args=(theirs, gpu), name=f"training {number}", daemon=True)
                process.start()
                theirs.close()
                self._orders.append(ours)
                self._processes.append(process)

    def __enter__(self) -> Workers:
        return self

    def __exit__(self, *_: object) -> None:
        for orders in self._orders:
            orders.close()
        for process in self._processes:
            process.join(1.0)
            process.kill()
            process.join()

    def device(self) -> str:
        """Return the name of their device, as pools know it."""
        self._send(0, None)
        return str(self._answers([0], time.monotonic() + BEGINS)[0])

    def warm_up(self, seconds: float) -> None:
        """Let all train at once for a moment: the first batch of a process takes seconds."""
        self._train(range(len(self._models)), "warm", time.monotonic() + seconds, BEGINS)

    def alone(self, lengths: Lengths) -> list[float]:
        """Return the throughput of each alone."""
        found = []
        for number in range(len(self._models)):
            until = time.monotonic() + lengths.settle + lengths.alone
            found += self._train([number], "alone", until).throughputs(lengths.alone)
        return found

    def together(
        self, name: str, seconds: float, pool: Served | None = None, deadline: float | None = None
    ) -> Together:
        """Let all train at once for some seconds, in a pool, with a deadline if any, or unmanaged."""
        until = time.monotonic() + seconds
        return self._train(range(len(self._models)), name, until, pool=pool, deadline=deadline)

    def in_time(self, name: str, batches: Sequence[int], deadline: float, pool: Served | None = None) -> int:
        """Return how many do their batches in time, all submitted at once."""
        until = time.monotonic() + deadline
        found = self._train(range(len(self._models)), name, until, pool=pool, batches=batches, deadline=deadline)
        return found.met(batches, deadline)

    def _train(
        self, numbers: Sequence[int], name: str, until: float, patience: float = PATIENCE, pool: Served | None = None,
        batches: Sequence[int] | None = None, deadline: float | None = None,
    ) -> Together:  # fmt: skip
        began, jobs = time.monotonic(), [f"{name}-{number}" for number in numbers]
        for place, number in enumerate(numbers):
            at_most = ENDLESS if batches is None else batches[place]
            folder = "" if pool is None else str(pool.folder)
            self._send(number, Order(jobs[place], self._models[number], until, at_most, deadline, folder))
        companies, stood = tuple[frozenset[str], ...](), 0.0

        def look() -> None:
            nonlocal companies, stood
            if pool is not None and time.monotonic() < until:
                now = _companies(pool, jobs)
                if now != companies:
                    companies, stood = now, time.monotonic() - began
                    print(f"{name}: after {stood:.1f} s beside each other: {_words(now)}", flush=True)

        found = Together(began, self._answers(numbers, until + patience, look), companies, stood)
        if pool is not None:
            there = {job.name for job in pool.status() if job.batches}
            if missing := sorted(set(jobs) - there):
                raise RuntimeError(f"all trainings must join the pool; {', '.join(missing)} did not")
        return found._replace(companies=companies, stood=stood)

    def _send(self, number: int, order: Order | None) -> None:
        try:
            self._orders[number].send(order)
        except OSError:
            raise self._ended(number) from None

    def _ended(self, number: int) -> RuntimeError:
        self._processes[number].join(PATIENCE)
        return RuntimeError(f"training {number} ended with exit code {self._processes[number].exitcode}")

    def _answers(self, numbers: Sequence[int], until: float, look: Callable[[], None] = lambda: None) -> list[Any]:
        """Return what processes answer; ``look`` is called meanwhile."""
        answers: dict[int, Any] = {}
        while len(answers) < len(numbers):
            missing = [number for number in numbers if number not in answers]
            ready = wait([self._orders[number] for number in missing], 0.1)
            for number in (number for number in missing if self._orders[number] in ready):
                try:
                    answers[number] = self._orders[number].recv()
                except (EOFError, OSError):
                    raise self._ended(number) from None
                if isinstance(answers[number], Exception):
                    raise RuntimeError(f"training {number} failed: {answers[number]}")
            if time.monotonic() > until:
                raise RuntimeError(f"{len(numbers) - len(answers)} of {len(numbers)} trainings did not end in time")
            look()
        return [answers[number] for number in numbers]


def _work(orders: Connection, gpu: bool) -> None:
    """Train as asked until there are no more orders."""
    torch.set_num_threads(1)
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    while True:
        try:
            order = orders.recv()
        except EOFError:
            return
        try:
            orders.send(_device(gpu) if order is None else _train(order, gpu))
        except Exception as error:
            orders.send(RuntimeError(f"{type(error).__name__}: {str(error)[:300]}"))


def _device(gpu: bool) -> str:
    from lightning_core.agent.user_code.torch_here import device_name

    return device_name(torch.device("cuda", 0)) if gpu else "cpu0"


def _train(order: Order, gpu: bool) -> np.ndarray:
    from lightning_core.callbacks import CoreCallback

    pl.seed_everything(0, verbose=False)
    until = Until(order.until, order.batches)
    callbacks: list[pl.Callback] = [until]
    if order.pool:
        deadline, target = order.deadline, BatchTarget(order.batches)
        callbacks.append(CoreCallback(order.job, deadline, target, pool=order.pool, on_refused="alone"))
    trainer = pl.Trainer(
        max_epochs=-1, logger=False, enable_checkpointing=False, enable_progress_bar=False,
        enable_model_summary=False, accelerator="gpu" if gpu else "cpu", devices=1, callbacks=callbacks,
    )  # fmt: skip
    trainer.fit(order.model())
    return np.array(until.times)


@contextmanager
def _environment(more: Mapping[str, str]) -> Iterator[None]:
    before = dict(os.environ)
    os.environ.update(more)
    try:
        yield
    finally:
        for name in more:
            os.environ.pop(name)
        os.environ.update(before)


def _companies(pool: Served, jobs: Sequence[str]) -> tuple[frozenset[str], ...]:
    """Return which of some jobs train beside each other, each company once."""
    found = {frozenset((job.name, *job.beside)) for job in pool.status() if job.name in jobs and job.beside}
    return tuple(sorted(found, key=sorted))


def _words(companies: Sequence[frozenset[str]]) -> str:
    return "; ".join(" and ".join(sorted(one)) for one in companies) or "none"


def pool_of(device: str, beside: Beside) -> Served:
    """Return a pool in which those without a deadline share the device."""
    return Served(device, settings(device, beside=beside))


def settings(device: str, **more: Any) -> Settings:
    """Return the settings of a pool of one device: of a CPU, all cores of this machine."""
    if device.startswith("cpu"):
        return Settings(quantum=0.05, cores=len(os.sched_getaffinity(0)), **more)
    return Settings(**more)


def measure(
    gpu: bool,
    keep: Callable[[Figures], object] = lambda figures: None,
    lengths: Lengths = LENGTHS,
    until: float = math.inf,
    control: Sequence[str] = (CONTROL,),
) -> tuple[Figures, str]:
    """Measure all that there is time for.

    Args:
        gpu: Whether on the GPU, otherwise on the CPU.
        keep: Called with all figures so far.
        lengths: Seconds that are measured.
        until: Monotonic time by which it should have ended.
        control: Program that is the MPS daemon.

    Returns:
        The figures, and why MPS was left out, empty if it was not.
    """
    figures: Figures = {}

    def note(**more: float) -> None:
        figures.update(more)
        keep(figures)

    seconds = lengths.settle + lengths.together
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="lc-")))
        later = stack.enter_context(Workers(KINDS, gpu, variables(folder)))  # they begin meanwhile
        workers = stack.enter_context(Workers(KINDS, gpu))
        device = workers.device()
        workers.warm_up(lengths.settle)
        turns = stack.enter_context(pool_of(device, Beside.NEVER))
        beside = stack.enter_context(pool_of(device, Beside.AUTO))
        alone = [workers.alone(lengths)]
        print(f"alone: {', '.join(f'{one:.0f}' for one in alone[0])} batches/s", flush=True)

        def parts(found: Together) -> list[float]:
            rates, seen = found.throughputs(lengths.together), np.mean(alone, axis=0)
            return [float(rate / lone) for rate, lone in zip(rates, seen, strict=True)]

        in_turns = workers.together("turns", START + lengths.together, turns)
        unmanaged = workers.together("unmanaged", seconds)
        note(four_turns=sum(parts(in_turns)), four_unmanaged=sum(parts(unmanaged)))
        at_once = workers.together("beside", lengths.forming + seconds, beside)
        alone.append(workers.alone(lengths))
        fair = parts(in_turns)
        note(
            four_turns=sum(fair),
            four_share_error=max(abs(one / statistics.fmean(fair) - 1) for one in fair),
            four_unmanaged=sum(parts(unmanaged)),
            four_beside=sum(parts(at_once)),
            four_beside_jobs=float(sum(map(len, at_once.companies))),
            four_beside_companies=float(len(at_once.companies)),
            four_beside_s=at_once.stood,
        )
        batches = [max(1, round(float(lone) * lengths.work)) for lone in np.mean(alone, axis=0)]
        room = ROOM * lengths.work
        note(four_met_turns=workers.in_time("due", batches, room, turns))
        note(four_met_unmanaged=workers.in_time("due", batches, room))
        note(four_met_beside=workers.in_time("due", batches, room, beside))
        workers.__exit__()  # no process without MPS is left on the device
        try:
            # Their start, the warm-up and what is measured; the second is left out if the time is short.
            if time.monotonic() + 10.0 + seconds > until:
                raise NoMpsError("no time was left")
            stack.enter_context(mps(folder, control))
            stack.callback(later.__exit__)  # before the daemon ends
            later.warm_up(lengths.settle)
            note(four_mps=sum(parts(later.together("mps", seconds))))
            if time.monotonic() + lengths.forming + seconds > until:
                raise NoMpsError("no time was left for pools under it")
            with pool_of(device, Beside.AUTO) as pool:
                note(four_mps_beside=sum(parts(later.together("mps-beside", lengths.forming + seconds, pool))))
        except (NoMpsError, RuntimeError) as error:
            return figures, f"MPS: {error}"
    return figures, ""


if __name__ == "__main__":
    found, why = measure(gpu=False)
    print({name: f"{number:.3g}" for name, number in found.items() if number is not None}, why)
