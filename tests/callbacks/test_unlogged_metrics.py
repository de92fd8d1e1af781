"""Targets about a metric of torchmetrics that is an attribute of the module and never logged."""

from __future__ import annotations

import copy
import os
import random
import subprocess
import sys
from typing import Any

import lightning.pytorch as pl
import pytest
import torch
import torchmetrics

from lightning_core.callbacks import CoreCallback
from lightning_core.core.targets import parse_target
from tests.callbacks.test_callback import ConnectedScript, Script, fit, grant, steered
from tests.callbacks.test_reading import cells
from tests.matrix.collectives import difference
from tests.matrix.forks import Forks
from tests.tiny import QUIET, Batch, Line, ValidatedPoints

NEVER = "val_near>=2 of 3"


class Near(torchmetrics.MeanMetric):
    """Fraction of points near the line; it draws random numbers, and may raise where it is computed.

    Args:
        raises_at: Numbers of the validations, from 1, whose value cannot be computed.
        where: ``"compute"``, or ``"copy"`` for one that cannot even be copied.
    """

    def __init__(self, raises_at: tuple[int, ...] = (), where: str = "compute") -> None:
        super().__init__()
        self.raises_at, self.where, self.validation = raises_at, where, 0

    def compute(self) -> torch.Tensor:
        torch.rand(1)
        random.random()
        if self.where == "compute" and self.validation in self.raises_at:
            raise ValueError("no value today")
        return super().compute()

    def __deepcopy__(self, memo: Any) -> Near:
        if self.where == "copy" and self.validation in self.raises_at:
            raise ValueError("no copy today")
        made = type(self).__new__(type(self))
        made.__setstate__(copy.deepcopy(self.__getstate__(), memo))
        return made


class Judged(Line):
    """A line whose accuracy is a metric that it updates, computes and resets itself.

    Args:
        metric: Metric.
        log: Whether it is logged by the module's hook.
    """

    def __init__(self, metric: Any, log: bool = False) -> None:
        super().__init__(lr=0.01)
        self.val_near, self.logs = metric, log
        self.own: list[float] = []
        self.gathers = True

    def validation_step(self, batch: Batch, batch_idx: int) -> None:
        if self.trainer.sanity_checking:
            return
        x, y = batch
        self.val_near.validation = self.trainer.current_epoch + 1
        self.val_near.update(((self.layer(x) - y).abs() < 0.5).float())

    def on_validation_epoch_end(self) -> None:
        if self.trainer.sanity_checking:
            return
        metric = self.val_near
        metric.raises_at, kept = (), metric.raises_at
        metric._to_sync = self.gathers
        self.own.append(float(metric.compute()))
        if self.logs:
            self.log("val_near", self.own[-1], sync_dist=True)
        metric.reset()
        metric.raises_at, metric._to_sync = kept, True


def run(model: Judged, launched: bool = True, target: str = NEVER) -> Script:
    script = Script(grant(1, 1.0))
    fit(steered(script, parse_target(target), launched=launched), model, ValidatedPoints(), max_epochs=4)
    return script


@pytest.mark.parametrize("log", [False, True])
def test_it_is_one_cell_a_validation_with_the_value_that_the_user_computes(log: bool) -> None:
    model = Judged(Near(), log)
    script = run(model)
    found = cells(script)
    assert [cell.batches for cell in found] == [16, 32, 48, 64]
    assert [cell.value for cell in found] == pytest.approx(model.own)
    assert len(set(model.own)) > 1
    assert all(report.evaluated for report in script.reports if report.cells)


def test_a_script_stops_in_the_validation_that_meets_it() -> None:
    model = Judged(Near())
    callback = CoreCallback("line", "10m", "val_near>=0.9", pool="local")
    trainer = fit(callback, model, ValidatedPoints(), max_epochs=500)
    assert model.own[-1] >= 0.9
    assert all(value < 0.9 for value in model.own[:-1])
    assert trainer.global_step == 16 * len(model.own)


@pytest.mark.parametrize("where", ["compute", "copy"])
@pytest.mark.parametrize("raises_at", [(1,), (2, 3)])
def test_one_that_raises_costs_that_observation_alone(
    raises_at: tuple[int, ...], where: str, caplog: pytest.LogCaptureFixture
) -> None:
    model = Judged(Near(raises_at, where))
    script = run(model)
    assert [cell.batches for cell in cells(script)] == [16 * one for one in range(1, 5) if one not in raises_at]
    assert len(model.own) == 4
    assert caplog.text.count("training continues without its metric val_near") == 1


def test_the_metric_and_the_random_states_are_as_without_us() -> None:
    seen = []
    for callbacks in ([], [steered(Script(grant(1, 1.0)), parse_target(NEVER))]):
        pl.seed_everything(3, verbose=False)
        model = Judged(Near())
        states: list[Any] = []
        compute = model.val_near.compute

        def watched(states: list[Any] = states, model: Judged = model, compute: Any = compute) -> Any:
            states.append([model.val_near._computed, model.val_near.update_count, random.getstate()[1][:4]])
            return compute()

        model.val_near.compute = watched
        trainer = pl.Trainer(**QUIET, max_epochs=3, callbacks=list(callbacks))
        trainer.fit(model, datamodule=ValidatedPoints())
        seen.append([states, model.own, torch.rand(1).item(), random.random()])
    assert seen[0] == seen[1]


def test_one_that_is_never_updated_counts_as_never_logged(caplog: pytest.LogCaptureFixture) -> None:
    model = Line()
    model.val_near = torchmetrics.MeanMetric()
    fit(CoreCallback("line", "10m", NEVER, pool="local"), model, ValidatedPoints(), max_epochs=2)
    assert caplog.text.count("target metric 'val_near' was never logged; logged so far: val_loss") == 1


def test_one_of_several_numbers_is_said_not_to_be_one(caplog: pytest.LogCaptureFixture) -> None:
    class Pairs(torchmetrics.MeanMetric):
        def compute(self) -> torch.Tensor:
            return torch.zeros(2) + super().compute()

    class PairLine(Judged):
        def on_validation_epoch_end(self) -> None:
            self.val_near.reset()

    script = run(PairLine(Pairs()), launched=False)
    assert not [cell for report in script.reports for cell in report.cells]
    assert "target metric 'val_near' must be a number, got a tensor of 2 elements" in caplog.text


@pytest.mark.parametrize(
    ("target", "metric"),
    [
        ("val_near>=0.9", "val_near"),
        ("3 epochs, highest val_near", "val_near"),
        ("loss<=0.1", ""),
        ("3 epochs", ""),
        ("2000 batches", ""),
    ],
)
def test_ranks_with_targets_about_different_metrics_are_not_the_same(target: str, metric: str) -> None:
    """Else only some of them would come to where all of them agree."""
    options: Any = CoreCallback("line", "10m", target, pool="local")._options
    assert options.same_on_all_ranks() == [False, False, metric]


# ------------------------------------------------------------------------------------------------ several ranks


class Unlike(Near):
    """Has a state of another shape on the second rank, so that the ranks could not gather it."""

    def __init__(self) -> None:
        super().__init__()
        if os.environ["RANK"] == "1":
            self.add_state("seen", torch.zeros(2, 2), dist_reduce_fx="sum")
        else:
            self.add_state("seen", torch.zeros(1), dist_reduce_fx="sum")


def on_ranks(kind: str, log: bool, with_core: bool) -> Any:
    """Train on two ranks; return each rank's own values, and on the first the cells that were reported."""
    rank = int(os.environ["RANK"])
    second = {"raises on one": (2,), "raises on all": (2,), "cannot be copied on one": (2,)}
    fails = second.get(kind, ()) if rank == 1 or kind.endswith("all") else ()
    metric = Unlike() if kind == "unlike" else Near(fails, "copy" if "copied" in kind else "compute")
    pl.seed_everything(5, verbose=False)
    model = Judged(metric, log)
    model.gathers = kind != "unlike"
    script = Script(grant(1, 1.0))
    callbacks: list[pl.Callback] = [ConnectedScript("line", NEVER, client=script)] if with_core else []
    trainer = pl.Trainer(**QUIET, max_epochs=3, strategy="ddp", devices=2, callbacks=callbacks)
    trainer.fit(model, datamodule=ValidatedPoints())
    found = {cell.number: cell.value for report in script.reports for cell in report.cells}
    return model.own, list(found.values()), random.random(), torch.rand(1).item()


@pytest.mark.parametrize("log", [False, True])
@pytest.mark.parametrize(
    ("kind", "had"),
    [
        ("plain", [0, 1, 2]),
        ("raises on one", [0, 1, 2]),
        ("raises on all", [0, 2]),
        ("cannot be copied on one", [0, 2]),
        ("unlike", []),
    ],
)
def test_all_ranks_compute_it_together_or_none_does(kind: str, had: list[int], log: bool, forks: Forks) -> None:
    run = "tests.callbacks.test_unlogged_metrics:on_ranks"
    seen = forks.run(run, kind, log, True, ranks=2)
    without = forks.run(run, kind, log, False, ranks=2)
    assert [one.code for one in seen] == [0, 0], "\n".join(one.output[-3000:] for one in seen)
    assert not difference([one.collectives for one in seen])
    for one, other in zip(seen, without, strict=True):
        assert one.value[0] == other.value[0]
        assert one.value[2:] == other.value[2:]
    own = seen[0].value[0]
    assert len(own) == 3
    logged = [sum(both) / 2 for both in zip(own, seen[1].value[0], strict=True)]  # ``sync_dist`` of the values
    wanted = logged if log else [own[number] for number in had]
    assert seen[0].value[1] == pytest.approx(wanted)
    assert seen[1].value[1] == []  # the first rank speaks for all


def test_nothing_of_ours_imports_torchmetrics() -> None:
    code = "import sys; from lightning_core.agent.user_code.torch_here import is_metric; assert not is_metric(1);"
    code += "import lightning_core.integrations.plain; print({'torch', 'torchmetrics'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"
