"""A script in a Ray task, in a trainable of Ray Tune and in Ray Train trains as it does without the callback."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import ROOT
from tests.socket_servers import found_pool

pytestmark = [pytest.mark.cluster, pytest.mark.promise("R30")]
WHERE = ("none", "local", "pool")


@pytest.fixture
def pool() -> Iterator[str]:
    with found_pool(devices=4) as made:
        yield str(made.path.parent)


def trained(pool: str, ranks: int = 1) -> list[Any]:
    """Train; return the weights, what is left of the callback, and whether it has a verdict."""
    import lightning.pytorch as pl

    from lightning_core.callbacks import CoreCallback
    from tests.matrix.training import digest, ours_left
    from tests.tiny import QUIET, Line, ValidatedPoints

    ours = [] if pool == "none" else [CoreCallback("job", "1h", "val_loss<=1e-9", pool=pool, on_refused="rename")]
    options: dict[str, Any] = {**QUIET, "max_epochs": 3, "callbacks": ours}
    if ranks > 1:
        from ray.train.lightning import RayDDPStrategy, RayLightningEnvironment, prepare_trainer

        environment: Any = RayLightningEnvironment
        ray_ddp: Any = RayDDPStrategy
        options |= {"strategy": ray_ddp(), "plugins": [environment()], "devices": "auto"}
    pl.seed_everything(5, verbose=False)
    trainer, model = pl.Trainer(**options), Line()
    if ranks > 1:
        trainer = prepare_trainer(trainer)
    trainer.fit(model, datamodule=ValidatedPoints())
    return [digest(model.state_dict()), ours_left(), bool(ours and ours[0].verdict)]


def expected(found: dict[str, list[Any]]) -> dict[str, list[Any]]:
    """Return what all must have returned, given what one without the callback has."""
    weights = found["none"][0]
    return {where: [weights, [], where != "none"] for where in WHERE}


def test_in_a_ray_task(local_ray: None, pool: str) -> None:
    import ray

    task = ray.remote(trained).options(num_cpus=0.1, runtime_env={"env_vars": {"PYTHONPATH": str(ROOT)}})
    found = {where: ray.get(task.remote(pool if where == "pool" else where)) for where in WHERE}
    assert found == expected(found)


@pytest.mark.nightly
def test_in_a_trainable_of_ray_tune(local_ray: None, pool: str, tmp_path: Path) -> None:
    from ray import tune

    def trainable(config: dict[str, Any]) -> None:
        weights, left, verdict = trained(pool if config["where"] == "pool" else config["where"])
        tune.report({"weights": weights, "left": left, "verdict": verdict})

    tuner = tune.Tuner(
        tune.with_resources(trainable, {"CPU": 0.1}),
        param_space={"where": tune.grid_search(list(WHERE))},
        run_config=tune.RunConfig(storage_path=str(tmp_path), verbose=0),
    )
    results: Any = tuner.fit()
    assert not results.errors
    found = {one.config["where"]: [one.metrics[name] for name in ("weights", "left", "verdict")] for one in results}
    assert found == expected(found)


@pytest.mark.nightly
def test_in_ray_train(local_ray: None, pool: str, tmp_path: Path) -> None:
    from ray import train
    from ray.train.torch import TorchTrainer

    found = {}
    for where in WHERE:

        def loop(config: dict[str, Any]) -> None:
            seen = trained(config["pool"], ranks=2)
            if train.get_context().get_world_rank() == 0:
                Path(config["file"]).write_text(json.dumps(seen))

        file = tmp_path / f"{where}.json"
        TorchTrainer(
            loop,
            train_loop_config={"pool": pool if where == "pool" else where, "file": str(file)},
            scaling_config=train.ScalingConfig(num_workers=2, resources_per_worker={"CPU": 0.1}),
            run_config=train.RunConfig(storage_path=str(tmp_path), name=where),
        ).fit()
        found[where] = json.loads(file.read_text())
    assert found == expected(found)
