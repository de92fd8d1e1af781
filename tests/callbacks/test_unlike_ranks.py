"""Ranks of one training on which the callback is not the same: there it does nothing, and no rank waits for another."""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import pytest

from lightning_core.callbacks import CoreCallback
from tests.matrix.collectives import difference
from tests.matrix.forks import Forks
from tests.matrix.training import digest, ours_left
from tests.socket_servers import found_pool
from tests.tiny import QUIET, Line, ValidatedPoints

pytestmark = pytest.mark.promise("R31")
# Which arguments the callback of each rank has besides; None for no callback.
Kinds = tuple[dict[str, str] | None, dict[str, str] | None]
BOTH: Kinds = ({}, {})
FIRST: Kinds = ({}, None)
SECOND: Kinds = (None, {})


@pytest.fixture(scope="module")
def pool() -> Iterator[str]:
    with found_pool(devices=2) as made:
        yield str(made.path.parent)


def train(fits: list[Kinds], folder: str, with_core: bool, pool: str, disabled: int | None = None) -> Any:
    """Fit as often as is said; return the weights and the next random number of each fit, and its verdict here."""
    rank = int(os.environ["RANK"])
    if rank == disabled:
        os.environ["LIGHTNING_CORE_DISABLE"] = "1"
    verdicts, left = [], []
    for number, kinds in enumerate(fits):
        pl.seed_everything(5, verbose=False)
        kind = kinds[rank]
        callbacks: list[pl.Callback] = []
        if with_core and kind is not None:
            more = {name: f"{folder}/{value}" for name, value in kind.items()}
            target = "val_loss<=1e-9"
            callbacks.append(CoreCallback(f"job-{number}", "1h", target, pool=pool, on_refused="alone", **more))
        trainer = pl.Trainer(**QUIET, max_epochs=3, strategy="ddp", devices=2, callbacks=callbacks)
        model = Line()
        trainer.fit(model, datamodule=ValidatedPoints())
        left.append([digest(model.state_dict()), random.random(), ours_left()])
        verdicts.append(next((str(one.verdict) for one in callbacks if one.verdict is not None), None))  # type: ignore[attr-defined]
    return left, verdicts


@pytest.mark.parametrize(
    ("fits", "disabled", "spoken"),
    [
        ([BOTH], 0, [False]),
        ([BOTH], 1, [False]),
        ([({"keep_best": "best"}, {})], None, [False]),
        ([({}, {"keep_best": "best"})], None, [False]),
        ([({"keep_best": "first"}, {"keep_best": "second"})], None, [True]),
        ([BOTH, FIRST, BOTH, SECOND, BOTH], None, [True, False, True, False, True]),
    ],
)
def test_ranks_act_together_or_not_at_all(
    fits: list[Kinds], disabled: int | None, spoken: list[bool], forks: Forks, pool: str, tmp_path: Path
) -> None:
    run = "tests.callbacks.test_unlike_ranks:train"
    without = forks.run(run, fits, str(tmp_path), False, pool, disabled, ranks=2)
    seen = forks.run(run, fits, str(tmp_path), True, pool, disabled, ranks=2)
    assert [one.code for one in seen] == [0, 0], "\n".join(one.output[-3000:] for one in seen)
    assert not difference([one.collectives for one in seen])
    for one, other in zip(seen, without, strict=True):
        assert one.value[0] == other.value[0]
    assert [verdict is not None for verdict in seen[0].value[1]] == spoken
    said = seen[0].output + seen[1].output
    assert said.count("does nothing here, for it is not the same on all ranks") == spoken.count(False)
