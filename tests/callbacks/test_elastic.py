"""Resizing changes no result of a training: the loader alone, and whole trainings."""

from __future__ import annotations

import json
import os
import random
import signal
import time
import traceback
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import lightning.pytorch as pl
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from lightning.fabric.utilities.exceptions import MisconfigurationException
from lightning.pytorch.callbacks import GradientAccumulationScheduler, ModelCheckpoint
from lightning.pytorch.strategies import DDPStrategy
from torch.utils.data import DataLoader, Dataset, SequentialSampler, WeightedRandomSampler

from lightning_core.agent.steering import ranks
from lightning_core.agent.steering.fit_signals import JobReleased
from lightning_core.agent.user_code import random_state
from lightning_core.bundle.job_spec import feasible_sizes, micro_batches_of
from lightning_core.callbacks import ElasticLoader
from lightning_core.callbacks.checkpointing.job_checkpointer import JobCheckpointer
from lightning_core.callbacks.elastic import loader as loaders
from lightning_core.callbacks.elastic import steps
from lightning_core.worker.process_group import (
    INTERFACE,
    Rank,
    free_port,
    interface_towards,
    joined_ranks,
    trainer_arguments,
)
from tests.callbacks.test_callback import Script, grant
from tests.cluster.test_release import launched, release
from tests.examples import examples
from tests.tiny import QUIET, Batch, Net, NoisyPoints

Slot = list[int]


# ---------------------------------------------------------------------------------------------------------- the loader


class World:
    """Several ranks, each of which this process is in turn."""

    def __init__(self, ranks: int, micro_batches: int) -> None:
        self.ranks, self.micro_batches = ranks, micro_batches

    def each(self, work: Callable[[], Any]) -> list[Any]:
        """Return the result of each rank."""
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv(steps.MICRO_BATCHES, str(self.micro_batches))
            patch.setattr(loaders, "world_size", lambda: self.ranks)
            answers = []
            for rank in range(self.ranks):
                patch.setattr(loaders, "rank", lambda rank=rank: rank)
                answers.append(work())
            return answers

    def micro_batches_of(self, of_ranks: list[list[Slot]]) -> list[list[Slot]]:
        """Return the samples of each micro-batch, step by step."""
        own = self.micro_batches // self.ranks
        batches = len(of_ranks[0])
        assert {len(of_rank) for of_rank in of_ranks} == {batches}
        in_order = [of_rank[batch] for batch in range(batches) for of_rank in of_ranks]
        return [in_order[at : at + own * self.ranks] for at in range(0, len(in_order), own * self.ranks)]


def loader(samples: int, batch_size: int = 2, **more: Any) -> ElasticLoader:
    return ElasticLoader(range(samples), batch_size, **more)


def read(loader: ElasticLoader) -> list[Slot]:
    return [batch.tolist() for batch in loader]


def epoch_of(world: World, samples: int, batch_size: int, **more: Any) -> list[list[Slot]]:
    return world.micro_batches_of(world.each(lambda: read(loader(samples, batch_size, **more))))


@settings(deadline=None, max_examples=examples(40))
@given(st.integers(1, 150), st.integers(1, 5), st.sampled_from([1, 2, 3, 4, 6, 12]), st.booleans(), st.data())
def test_an_epoch_is_the_same_on_every_number_of_ranks(
    samples: int, batch_size: int, micro_batches: int, shuffle: bool, data: st.DataObject
) -> None:
    if samples < micro_batches:
        with pytest.raises(ValueError, match=f"a step needs at least {micro_batches} samples"):
            World(1, micro_batches).each(lambda: len(loader(samples, batch_size)))
        return
    whole = epoch_of(World(1, micro_batches), samples, batch_size, shuffle=shuffle)
    assert sorted(sample for step in whole for slot in step for sample in slot) == list(range(samples))
    assert {len(step) for step in whole} == {micro_batches}
    lengths = [len(slot) for step in whole for slot in step]
    assert 1 <= min(lengths) <= max(lengths) <= batch_size + 1
    assert all(max(map(len, step)) - min(map(len, step)) <= 1 for step in whole)
    numbers = [number for number in range(1, micro_batches + 1) if micro_batches % number == 0]
    for number in numbers:
        world = World(number, micro_batches)
        assert epoch_of(world, samples, batch_size, shuffle=shuffle) == whole
        assert set(world.each(lambda: len(loader(samples, batch_size)))) == {len(whole) * micro_batches // number}
    before, after = (World(data.draw(st.sampled_from(numbers)), micro_batches) for _ in range(2))
    done = data.draw(st.integers(0, len(whole)))

    def leave() -> dict[str, Any]:
        leaving = loader(samples, batch_size, shuffle=shuffle)
        batches = iter(leaving)
        for _ in range(done * micro_batches // before.ranks):
            next(batches)
        return dict(leaving.state_dict())

    def go_on(state: dict[str, Any]) -> tuple[list[Slot], list[Slot]]:
        back = loader(samples, batch_size, shuffle=shuffle)
        back.load_state_dict(state)
        return read(back), read(back)

    states = before.each(leave)
    assert states == [states[0]] * before.ranks
    assert json.loads(json.dumps(states[0])) == states[0]
    rest, following = zip(*after.each(lambda: go_on(states[0])), strict=True)
    if done < len(whole):
        assert after.micro_batches_of(list(rest)) == whole[done:]
    else:
        following = rest
    undisturbed = loader(samples, batch_size, shuffle=shuffle)
    second = World(1, micro_batches).each(lambda: (read(undisturbed), read(undisturbed))[1])
    assert after.micro_batches_of(list(following)) == World(1, micro_batches).micro_batches_of(second)


def test_the_rest_of_an_epoch_is_one_smaller_batch() -> None:
    def sizes_of(samples: int, **more: Any) -> list[list[int]]:
        return [[len(slot) for slot in step] for step in epoch_of(World(1, 3), samples, 2, **more)]

    assert sizes_of(12) == [[2, 2, 2], [2, 2, 2]]
    assert sizes_of(16) == [[2, 2, 2], [2, 2, 2], [2, 1, 1]]  # a step of its own
    assert sizes_of(14) == [[2, 2, 2], [3, 3, 2]]  # too few for that
    assert sizes_of(14, drop_last=True) == sizes_of(16, drop_last=True) == [[2, 2, 2], [2, 2, 2]]
    assert sizes_of(4) == [[2, 1, 1]]
    with pytest.raises(ValueError, match="a step needs at least 6 samples"):
        sizes_of(4, drop_last=True)


def test_each_epoch_has_its_own_order_set_by_lightning() -> None:
    told = loader(40, seed=3)
    epochs = []
    for epoch in (0, 1, 0):
        elastic_sampler: Any = told.sampler
        elastic_sampler.set_epoch(epoch)
        epochs.append(read(told))
    assert epochs[0] == epochs[2] != epochs[1]
    assert read(loader(40, seed=4)) != epochs[0]
    alone = loader(40, seed=3)
    by_itself = [read(alone) for _ in range(3)]
    assert by_itself[0] == epochs[0]
    assert by_itself[1] not in (by_itself[0], by_itself[2])
    assert read(loader(4, shuffle=False)) == [[0, 1], [2, 3]]


def test_an_abandoned_epoch_begins_again() -> None:
    left = loader(40, shuffle=False)
    next(iter(left))
    assert read(left)[0] == [0, 1]
    iter(left)
    assert len(read(left)) == 20


class Drawing(Dataset[torch.Tensor]):
    """Samples with the random numbers that a worker draws."""

    def __len__(self) -> int:
        return 40

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.stack([torch.tensor(float(index)), torch.rand(())])


def test_prefetched_batches_do_not_count_as_trained() -> None:
    def make(**more: Any) -> ElasticLoader:
        return ElasticLoader(Drawing(), 2, prefetch_factor=4, num_workers=2, **more)

    def samples(batches: Any) -> list[Slot]:
        return [batch[:, 0].int().tolist() for batch in batches]

    stay, before = make(persistent_workers=True), torch.get_rng_state()
    first, second = samples(stay), samples(stay)
    assert torch.equal(before, torch.get_rng_state())  # the training draws what it would without a loader
    assert first == read(loader(40))
    assert sorted(index for batch in second for index in batch) == list(range(40))
    assert first != second
    leaving = make()
    batches = iter(leaving)
    drawn = [tuple(next(batches)[:, 1].tolist()) for _ in range(7)]
    assert len(set(drawn)) == 7
    for back in (make(), stay):
        back.load_state_dict(leaving.state_dict())
        assert samples(back) == first[7:]
    assert samples(stay) == second
    of_ranks = World(2, 2).each(lambda: next(iter(make()))[0, 1].item())
    assert of_ranks[0] != of_ranks[1]


def test_wrong_arguments_of_the_loader_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValueError, match="batch_size must be at least 1, got 0"):
        loader(4, 0)
    with pytest.raises(ValueError, match="seed must be at least 0, got -1"):
        loader(4, seed=-1)
    for wrong in ({"sampler": WeightedRandomSampler([1.0] * 4, 4)}, {"batch_sampler": [[0, 1]]}):
        with pytest.raises(TypeError, match="remove sampler and batch_sampler"):
            loader(4, **wrong)
    with pytest.raises(ValueError, match="the 3 micro-batches of a step cannot be divided among 2 ranks"):
        World(2, 3).each(lambda: len(loader(40)))
    left = loader(40)
    next(iter(left))
    state = left.state_dict()
    for other in (loader(42), loader(40, 3)):
        with pytest.raises(
            ValueError, match="the middle of an epoch with 40 samples and 1 micro-batches of 2 in a step"
        ):
            other.load_state_dict(state)
    monkeypatch.setenv(steps.MICRO_BATCHES, "2")
    with pytest.raises(ValueError, match="cannot resume there with 40 samples and 2 micro-batches of 2 in a step"):
        loader(40).load_state_dict(state)
    loader(42).load_state_dict({**state, "steps": 20})  # it was at its end


def test_within_a_step_only_the_same_number_of_ranks_can_continue() -> None:
    def leave() -> dict[str, Any]:
        leaving = loader(36, 1, shuffle=False)
        batches = iter(leaving)
        for _ in range(5):
            next(batches)
        return dict(leaving.state_dict())

    state = World(2, 6).each(leave)[0]
    assert (state["steps"], state["micro_batches"]) == (1, 4)

    def go_on() -> Slot:
        back = loader(36, 1, shuffle=False)
        back.load_state_dict(state)
        return read(back)[0]

    assert World(2, 6).each(go_on) == [[10], [11]]
    assert World(3, 6).each(go_on) == [[6], [7], [8]]


def test_a_loader_copied_without_shuffling_differs_only_in_order() -> None:
    from lightning.pytorch.utilities.data import _update_dataloader

    class Held(pl.LightningDataModule):
        def train_dataloader(self) -> Any:
            return ElasticLoader(torch.arange(10.0)[:, None], batch_size=4, seed=3, timeout=1.5, num_workers=1)

    from lightning.fabric.utilities.data import _replace_dunder_methods

    with _replace_dunder_methods(DataLoader, "dataset"):
        hooked = Held().train_dataloader()
    for made in (Held().train_dataloader(), hooked):
        anew: Any = _update_dataloader(made, SequentialSampler(made.dataset))
        assert type(anew) is ElasticLoader
        assert [batch[:, 0].tolist() for batch in anew] == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]
        assert (anew.timeout, anew.num_workers, anew.seed) == (1.5, 1, 3)


def test_the_number_of_ranks_divides_the_micro_batches() -> None:
    assert micro_batches_of({}, 4) == micro_batches_of({"trainer": None}, 4) == 4
    assert micro_batches_of({"trainer": {"accumulate_grad_batches": 3}}, 2) == 6
    assert feasible_sizes(6, 1, 4) == (1, 2, 3)
    assert feasible_sizes(5, 2, 4) == ()


# ------------------------------------------------------------------------------------------------------ whole trainings


class Numbered(Dataset[tuple[torch.Tensor, ...]]):
    """Points by number.

    Args:
        points: Number of points.
    """

    def __init__(self, points: int) -> None:
        draw = torch.Generator().manual_seed(0)
        self.x = torch.randn(points, 3, generator=draw, dtype=torch.float64)
        self.y = self.x.sum(1, keepdim=True) + 0.1 * torch.randn(points, 1, generator=draw, dtype=torch.float64)

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, ...]:
        return torch.tensor(index), self.x[index], self.y[index]


class Noted(pl.LightningModule):
    """Records its training samples, its learning rates, and when it validates.

    Args:
        points: Number of training samples.
        plain: Whether its loader is a plain one.
        estimates: Whether it asks for the length of the training.
        frequency: Frequency of its schedule by step.
    """

    def __init__(self, points: int = 55, plain: bool = False, estimates: bool = False, frequency: int = 1) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(3, 1, dtype=torch.float64)
        torch.nn.init.constant_(self.layer.weight, 0.1)
        torch.nn.init.zeros_(self.layer.bias)
        self.points, self.plain, self.estimates, self.frequency = points, plain, estimates, frequency
        self.seen: list[tuple[int, Slot]] = []
        self.rates: list[tuple[int, float]] = []
        self.validated: list[int] = []
        self.epochs: list[int] = []

    def train_dataloader(self) -> Any:
        data = Numbered(self.points)
        return DataLoader(data, 2, shuffle=True) if self.plain else ElasticLoader(data, 2, seed=5)

    def val_dataloader(self) -> Any:
        return DataLoader(Numbered(8), 4)

    def training_step(self, batch: Batch, batch_idx: int) -> torch.Tensor:
        index, x, y = batch
        self.seen.append((self.global_step, index.tolist()))
        return torch.nn.functional.mse_loss(self.layer(x), y)

    def on_before_optimizer_step(self, optimizer: Any) -> None:
        self.rates.append((self.global_step, optimizer.param_groups[0]["lr"]))

    def on_train_epoch_start(self) -> None:
        self.epochs.append(self.current_epoch)

    def validation_step(self, batch: Batch, batch_idx: int) -> None:
        _, x, y = batch
        self.log("val_loss", torch.nn.functional.mse_loss(self.layer(x), y), sync_dist=True)

    def on_validation_epoch_end(self) -> None:
        if not self.trainer.sanity_checking:
            self.validated.append(self.global_step)

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.SGD(self.parameters(), lr=0.05, momentum=0.9)
        by_step: Any = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.97)
        if self.estimates:
            steps = int(self.trainer.estimated_stepping_batches)
            by_step = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.05, total_steps=steps)
        by_epoch = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.7)
        first = {"scheduler": by_step, "interval": "step", "frequency": self.frequency}
        return [optimizer], [first, {"scheduler": by_epoch, "interval": "epoch"}]


class LeavesAfter(pl.Callback):
    """Releases the job after a number of steps, as a scheduler would."""

    def __init__(self, core: Any, step: int | None) -> None:
        self.core, self.step = core, step

    def on_train_batch_start(self, trainer: pl.Trainer, *_: Any) -> None:
        box = self.core._fit.mailbox
        if self.step is not None and trainer.global_step + 1 >= self.step and box is not None:
            box.inbox.directive = release(10)


@dataclass
class Chain:
    """A training with another number of ranks in each incarnation.

    Args:
        incarnations: Number of ranks of each incarnation, and the number of steps after which it leaves.
        model: Arguments of :class:`Noted`.
        options: Options of the Trainer.
        file: File from which it resumes.
    """

    incarnations: list[tuple[int, int | None]]
    model: dict[str, Any] = field(default_factory=dict)
    options: dict[str, Any] = field(default_factory=dict)
    file: str = "last.ckpt"
    micro_batches: int = 6

    def prepare(self, folder: Path) -> None:
        folder.mkdir()
        self._folder = folder
        self._gangs = [
            [Rank(number, of, port=port, micro_batches=self.micro_batches) for number in range(of)]
            for of, port in ((of, free_port()) for of, _ in self.incarnations)
        ]

    def live(self, number: int) -> None:
        """Run all incarnations of one rank."""
        for incarnation, (gang, (_, leave_after)) in enumerate(zip(self._gangs, self.incarnations, strict=True)):
            begun = self._folder / f"{incarnation}"
            if number == 0:
                begun.touch()
            if number < len(gang):
                while not begun.exists():
                    time.sleep(0.002)
                told = self._train(gang[number], incarnation > 0, leave_after)
                (self._folder / f"{incarnation}-{number}.json").write_text(json.dumps(told))

    def _train(self, rank: Rank, back: bool, leave_after: int | None) -> dict[str, Any]:
        """Run one incarnation on this rank; return what it recorded."""
        pl.seed_everything(7, verbose=False)
        script = Script(grant(1, 1.0))
        with joined_ranks(rank):
            core = launched(self._folder, script, every=1)
            net = Noted(**self.model)
            options = {**QUIET, "max_epochs": 3, "num_sanity_val_steps": 0, **self.options}
            if rank.of > 1:
                arguments = trainer_arguments(rank, "cpu")["strategy"]["init_args"]
                options |= {"num_nodes": rank.of, "strategy": DDPStrategy(**arguments)}
            options["callbacks"] = [core, LeavesAfter(core, leave_after), *options.pop("callbacks", ())]
            trainer: Any = pl.Trainer(**{**options, "default_root_dir": self._folder})
            left = False
            try:
                trainer.fit(net, ckpt_path=self._folder / self.file if back else None)
            except JobReleased:
                left = True
            return {
                "left": left, "seen": net.seen, "rates": net.rates, "validated": net.validated, "epochs": net.epochs,
                "steps": trainer.global_step, "batches": script.reports[-1].batches if script.reports else None,
                "counted": (trainer.current_epoch, trainer.fit_loop.epoch_loop._batches_that_stepped),
                "weights": torch.cat([parameter.detach().flatten() for parameter in net.parameters()]).tolist(),
            }  # fmt: skip

    def read(self) -> None:
        """Read the records of all ranks."""
        self.told = [
            [json.loads((self._folder / f"{incarnation}-{rank.number}.json").read_text()) for rank in gang]
            for incarnation, gang in enumerate(self._gangs)
        ]
        self.left_at = [ranks[0]["steps"] for ranks in self.told if ranks[0]["left"]]
        self.weights = torch.tensor(self.told[-1][0]["weights"], dtype=torch.float64)

    def all(self, key: str) -> list[Any]:
        """Return the records of all incarnations, as the first rank made them."""
        return [entry for ranks in self.told for entry in ranks[0][key]]

    def result(self) -> dict[str, Any]:
        """Return what must not depend on the number of devices at any time."""
        # The samples of each micro-batch, in order: every rank trains every n-th.
        trained = [
            part
            for records in self.told
            for ranks in zip(*(rank["seen"] for rank in records), strict=True)
            for part in ranks
        ]
        kept = {key: self.all(key) for key in ("rates", "validated", "epochs")}
        last = {key: self.told[-1][0][key] for key in ("steps", "counted", "batches")}
        return {"micro_batches": trained, **kept, **last}


def in_processes(work: Callable[[int], object], number: int) -> None:
    """Run a function in several processes at once, which have imported torch already."""
    children = set()
    for rank in range(number):
        if not (child := os.fork()):
            code = 1
            try:
                torch.set_num_threads(1)
                work(rank)
                code = 0
            except BaseException:
                traceback.print_exc()
            finally:
                os._exit(code)
        children.add(child)
    ended: list[int] = []
    while children:
        for child in list(children):
            if (of := os.waitpid(child, os.WNOHANG))[0]:
                children.discard(child)
                ended.append(of[1])
        if any(ended):  # the others would wait for it
            for child in children:
                os.kill(child, signal.SIGKILL)
        time.sleep(0.01)
    assert ended == [0] * number


RESIZED: list[tuple[int, int | None]] = [(1, 2), (2, 5), (3, 7), (1, 8), (3, None)]
# As on three devices, which gather two batches each.
TWO: dict[str, Any] = {"accumulate_grad_batches": 2}
# Model, options and validation of each kind of training.
KINDS: dict[str, tuple[dict[str, Any], dict[str, Any], list[int]]] = {
    "plain": ({}, {}, [5, 10, 15]),
    "one left": ({"points": 51}, TWO, [4, 8, 12]),  # fewer than micro-batches in a step: no step of their own
    "often": ({}, {**TWO, "val_check_interval": 4}, [2, 4, 7, 9, 12, 14]),
    "parts": (
        {"frequency": 3, "estimates": True},
        {**TWO, "limit_train_batches": 0.7, "val_check_interval": 0.7, "max_epochs": 4}, [2, 5, 8, 11],
    ),
    "by step": (
        {}, {**TWO, "check_val_every_n_epoch": None, "val_check_interval": 6, "max_steps": 14, "max_epochs": -1},
        [3, 6, 9, 12],
    ),
}  # fmt: skip


@pytest.fixture(scope="module")
def chains(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Chain]:
    """Provide the trainings that the tests below compare; three processes run them."""
    own = {"callbacks": [ModelCheckpoint(None, "{step}", every_n_train_steps=3)], "enable_checkpointing": True}
    made = {
        **{f"{kind}, whole": Chain([(1, None)], *what[:2]) for kind, what in KINDS.items()},
        **{kind: Chain(RESIZED, *what[:2]) for kind, what in KINDS.items()},
        # An epoch of a plain loader ends within a step: 30 batches are more than it has.
        "no elastic loader": Chain(
            [(2, 1), (1, 6), (3, None)], {"plain": True}, {**TWO, "val_check_interval": 10, "max_epochs": 4}
        ),
        "its own": Chain([(2, 5), (1, None)], {}, own, "checkpoints/step=3.ckpt"),
    }
    folder = tmp_path_factory.mktemp("chains")
    for name, chain in made.items():
        chain.prepare(folder / name)

    def work(number: int) -> None:
        ranks.AGREEMENT_PERIOD, ranks.MAX_AGREEMENT_COST = 0.0, 1e9  # all agree after every batch
        for chain in made.values():
            chain.live(number)

    in_processes(work, 3)
    for chain in made.values():
        chain.read()
    return made


@pytest.mark.parametrize("kind", KINDS)
def test_a_training_resized_within_an_epoch_equals_one_on_one_device(chains: dict[str, Chain], kind: str) -> None:
    run, whole = chains[kind], chains[f"{kind}, whole"]
    assert len(run.left_at) == len(RESIZED) - 1
    for key, theirs in whole.result().items():
        assert run.result()[key] == theirs, key
    assert torch.allclose(run.weights, whole.weights, rtol=0, atol=1e-10)
    assert whole.weights.abs().max() > 0.5
    assert run.result()["validated"] == KINDS[kind][2]
    assert run.result()["batches"] == run.result()["steps"]


def test_with_another_loader_a_training_is_resized_between_epochs(chains: dict[str, Chain]) -> None:
    run = chains["no elastic loader"]
    assert run.left_at == [5, 10]
    assert run.all("epochs") == [0, 1, 2, 3]
    assert run.all("validated") == [5, 10, 15, 20]
    for records in run.told:
        seen = [
            index
            for rank in records
            for step, indices in rank["seen"]
            if step // 5 == records[0]["epochs"][0]
            for index in indices
        ]
        assert set(seen) == set(range(55))


def test_a_checkpoint_of_its_own_callbacks_is_resized_too(chains: dict[str, Chain]) -> None:
    run, whole = chains["its own"], chains["plain, whole"]
    assert run.told[0][0]["steps"] == 5
    [back] = run.told[1]
    assert back["seen"] == whole.told[0][0]["seen"][3 * 6 :]
    assert back["validated"] == [5, 10, 15]
    assert torch.allclose(run.weights, whole.weights, rtol=0, atol=1e-10)


# ------------------------------------------------------------------------------------------------ in one process


def fit(
    core: Any, model: pl.LightningModule, ckpt_path: Any = None, callbacks: Iterable[pl.Callback] = (), **more: Any
) -> Any:
    trainer = pl.Trainer(**{**QUIET, "max_epochs": 3, **more}, callbacks=[core, *callbacks])
    trainer.fit(model, datamodule=NoisyPoints(), ckpt_path=ckpt_path)
    return trainer


def leave(folder: Path, after: int, callbacks: Iterable[pl.Callback] = (), **more: Any) -> int:
    """Train until the job is released; return the number of saved steps."""
    core = launched(folder, Script(grant(1, 1.0)))
    with pytest.raises(JobReleased):
        fit(core, Net(), callbacks=[LeavesAfter(core, after), *callbacks], **more)
    assert core.last_checkpoint is not None
    return int(core.last_checkpoint.batches)


def test_a_training_that_cannot_be_resized_is_refused_before_it_begins(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(steps.MICRO_BATCHES, "2")
    model = Net(manual=True)
    with pytest.raises(MisconfigurationException, match="cannot change: the module uses manual optimization"):
        fit(launched(tmp_path), model)
    scheduler = GradientAccumulationScheduler({1: 2})
    with pytest.raises(MisconfigurationException, match="GradientAccumulationScheduler changes the size"):
        fit(launched(tmp_path), Net(), callbacks=[scheduler])
    assert model.seen == []
    monkeypatch.setattr(pl.Trainer, "world_size", 3)
    with pytest.raises(MisconfigurationException, match="the 2 micro-batches of a step cannot be divided among 3"):
        steps.MicroBatches(pl.Trainer(**QUIET), Net(), 2)


def test_without_a_launcher_nothing_is_shared(monkeypatch: pytest.MonkeyPatch) -> None:
    from lightning_core.callbacks import CoreCallback
    from lightning_core.core.targets import BatchTarget

    monkeypatch.setenv(steps.MICRO_BATCHES, "2")
    core = CoreCallback("job", deadline="60s", target=BatchTarget(10**6), pool="local")
    assert fit(core, Net(), max_epochs=1).global_step == 10


def test_a_loader_without_any_ranks_begins_the_new_epoch_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same process, in which a rank has twice as many batches of each step: as on half the devices."""
    monkeypatch.setenv(steps.MICRO_BATCHES, "2")
    assert leave(tmp_path, 1) == 5
    monkeypatch.setenv(steps.MICRO_BATCHES, "4")
    model = Net()
    trainer = fit(launched(tmp_path), model, tmp_path / "last.ckpt")
    assert len(model.seen) == 20
    assert (trainer.global_step, trainer.fit_loop.epoch_loop.total_batch_idx) == (5 + 2 * 3, 20 + 20 - 1)


def test_a_checkpoint_inside_an_epoch_is_refused_on_other_ranks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = ModelCheckpoint(tmp_path, "own", every_n_train_steps=3)
    assert leave(tmp_path, 4, callbacks=[own], enable_checkpointing=True) == 4
    monkeypatch.setenv(steps.MICRO_BATCHES, "2")
    for name in ("last", "own"):
        model = Net()
        with pytest.raises(MisconfigurationException, match="not every training loader can resume there"):
            fit(launched(tmp_path), model, tmp_path / f"{name}.ckpt")
        assert model.seen == []


def test_new_ranks_draw_other_random_numbers() -> None:
    drawn = []
    for seed in (1, 2):
        pl.seed_everything(seed, verbose=False)
        drawn.append(random_state.collect())
    found = {"random": drawn}
    share: Any = object()
    saver = JobCheckpointer(None, 1.0, share)

    def first(rank: int, of: int, saver: JobCheckpointer = saver) -> float:
        pl.seed_everything(99, verbose=False)
        trainer: Any = SimpleNamespace(global_rank=rank, world_size=of)
        saver._restore_random(trainer, found)
        numbers = (torch.rand(1).item(), random.random(), np.random.rand())
        assert len(set(numbers)) == 3
        return numbers[0]

    alone, two, four = [first(0, 1)], [first(rank, 2) for rank in range(2)], [first(rank, 4) for rank in range(4)]
    assert alone == two[:1]
    assert four[:2] == two
    assert len({*four, first(0, 4, JobCheckpointer(None, 1.0))}) == 5
    assert four == [first(rank, 4) for rank in range(4)]


def test_the_environment_of_a_single_rank_names_its_micro_batches() -> None:
    with joined_ranks(Rank()):
        assert steps.micro_batches_per_step() == 0
    with joined_ranks(Rank(micro_batches=6)):
        assert steps.micro_batches_per_step() == 6
        assert "WORLD_SIZE" not in os.environ
    assert steps.micro_batches_per_step() == 0


def test_ranks_on_cpus_speak_over_the_interface_of_their_meeting_point(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not over that of the host's name, which most machines know as an address of their local host."""
    monkeypatch.delenv(INTERFACE, raising=False)
    with joined_ranks(Rank(1, 2, "127.0.0.1", free_port())):
        assert os.environ[INTERFACE] == "lo"
    assert INTERFACE not in os.environ
    monkeypatch.setenv(INTERFACE, "chosen")
    with joined_ranks(Rank(1, 2, "127.0.0.1", free_port())):
        assert os.environ[INTERFACE] == "chosen"
    assert os.environ[INTERFACE] == "chosen"
    assert interface_towards("no address") == ""
