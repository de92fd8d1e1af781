"""Strategies of launched jobs: what a config may name, what is refused and why, and what the ranks are given."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from lightning.pytorch.strategies import FSDPStrategy, ModelParallelStrategy

from lightning_core.bundle.bundle_file import BundleSpec
from lightning_core.bundle.lightning_config import build
from lightning_core.bundle.problems import BundleError
from lightning_core.bundle.strategies import SHORT, read_strategy, strategy_of, without_strategy
from lightning_core.callbacks.checkpointing.job_writer import load_plain_data_only
from lightning_core.callbacks.checkpointing.shards import saves_shards, whole_file_argument
from lightning_core.callbacks.launched import LaunchedCallback
from lightning_core.worker.process_group import Rank, trainer_arguments
from tests.builders import launched
from tests.callbacks.test_callback import Script, grant

MODEL_PARALLEL = "lightning.pytorch.strategies.ModelParallelStrategy"


def model_parallel(**arguments: Any) -> dict[str, Any]:
    return {"class_path": MODEL_PARALLEL, "init_args": arguments}


def read(strategy: Any, **terms: Any) -> BundleSpec:
    job = launched({"batches": 9}, trainer={"strategy": strategy}, **terms)
    return BundleSpec.from_dict({"pool": {"devices": 4}, "jobs": {"a": job}})


TENSORS = model_parallel(tensor_parallel_size=2)
FSDP_OF_SHARDS = {"class_path": "FSDPStrategy", "init_args": {"state_dict_type": "sharded"}}


@pytest.mark.parametrize(
    ("strategy", "terms", "words"),
    [
        ("deepspeed_stage_3", {}, "trainer.strategy: deepspeed_stage_3: DeepSpeed unpickles whatever is in its"),
        ({"class_path": "lightning.pytorch.strategies.DeepSpeedStrategy"}, {}, "use fsdp or ModelParallelStrategy"),
        ("ddp_spawn", {}, "ddp_spawn: starts processes of its own, .*; use ddp"),
        ("ddp_notebook", {}, "ddp_notebook: starts processes of its own"),
        ("dpp", {}, "expected ddp, .*, or the class path of DDPStrategy, FSDPStrategy or Model.*, got 'dpp'"),
        ({"class_path": "mine.ModelParallelStrategy"}, {}, "got 'mine.ModelParallelStrategy'"),
        ([1], {}, r"trainer.strategy: expected ddp, .* got \[1\]"),
        (model_parallel(timeout=9), {}, "timeout of ModelParallelStrategy is set by the launcher; remove it"),
        (model_parallel(tensor_parallel_size=0), {}, "tensor_parallel_size must be auto or a positive .*, got 0"),
        (TENSORS, {"devices": 3}, "data_parallel_size auto and tensor_parallel_size 2 must multiply .* got 3 to 3"),
        (model_parallel(data_parallel_size=2), {"devices": 4}, "data_parallel_size 2 and .* 1 must multiply"),
        (model_parallel(data_parallel_size=2), {"min_devices": 1, "max_devices": 2}, "must multiply .* got 1 to 2"),
        (TENSORS, {"min_devices": 2, "max_devices": 4}, "tensor_parallel_size 2 needs a number of devices that stays"),
        (model_parallel(), {"keep_best": True}, "keep_best: keeps one file, .* set save_distributed_checkpoint: false"),
        (FSDP_OF_SHARDS, {"keep_best": True}, "keep_best: keeps one file, and FSDP.* set state_dict_type: full"),
        (model_parallel(), {"on_hold": "offload"}, "on_hold: offload moves the state of one process, .* use keep"),
    ],
)
def test_what_a_strategy_cannot_do_is_refused_with_the_reason(strategy: Any, terms: Any, words: str) -> None:
    with pytest.raises(BundleError, match=words):
        read(strategy, **terms)


def test_fsdp_is_refused_on_cpus() -> None:
    spec = read("fsdp", devices=2)
    with pytest.raises(BundleError, match=r"trainer\.strategy: FSDPStrategy trains on GPUs only"):
        spec.check(local=False)


@pytest.mark.parametrize(
    ("strategy", "terms"),
    [
        *((name, {"devices": 2}) for name in SHORT),
        (model_parallel(), {"min_devices": 1, "max_devices": 4}),
        (model_parallel(save_distributed_checkpoint=False), {"keep_best": True, "devices": 2}),
        (model_parallel(data_parallel_size=2, tensor_parallel_size=2), {"devices": 4}),
        (TENSORS, {"devices": 4}),
    ],
)
def test_what_a_strategy_can_do_is_accepted_and_parsed(strategy: Any, terms: Any) -> None:
    spec = replace(read(strategy, **terms), kind="gpu")
    spec.check(local=False)  # LightningCLI reads it, too
    assert strategy_of(spec.jobs[0].config) == read_strategy(strategy)


@pytest.mark.parametrize(("strategy", "sizes"), [(model_parallel(), (4, 1)), (TENSORS, (2, 2))])
def test_the_launcher_says_how_many_ranks_there_are(strategy: Any, sizes: tuple[int, int], tmp_path: Any) -> None:
    """Lightning's "auto" would count the devices of each worker, which has one."""
    config = read(strategy, devices=4).jobs[0].config
    ranks = trainer_arguments(Rank(1, 4), "cpu", strategy_of(config))
    made = LaunchedCallback("a", "9 batches", client=Script(grant(1, 1.0)))
    trainer = build(without_strategy(config), "cpu", tmp_path, made, ranks).trainer
    assert isinstance(trainer.strategy, ModelParallelStrategy)
    assert (trainer.strategy._data_parallel_size, trainer.strategy._tensor_parallel_size) == sizes
    assert trainer.strategy.process_group_backend == "gloo"
    assert trainer.strategy._timeout == timedelta(seconds=120)
    assert trainer.num_nodes == 4


def test_a_folder_of_shards_is_no_checkpoint_to_start_from(tmp_path: Path) -> None:
    (tmp_path / "meta.pt").touch()
    job = launched({"batches": 9}, ckpt_path=str(tmp_path))
    with pytest.raises(BundleError, match=r"is a folder of shards, .* one file of it: python -m .*consolidate_check"):
        BundleSpec.from_dict({"jobs": {"a": job}}).check()


def test_shards_are_loaded_as_plain_data_whatever_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []

    def load(self: Any, path: str, weights_only: bool | None = None) -> None:
        asked.append(weights_only)

    monkeypatch.setattr(ModelParallelStrategy, "load_checkpoint", load)
    made = ModelParallelStrategy()
    load_plain_data_only(made)
    made.load_checkpoint("a")
    made.load_checkpoint("a", weights_only=False)
    assert asked == [True, True]


def test_a_sharded_model_needs_a_process_group_even_on_one_device() -> None:
    assert trainer_arguments(Rank(), "cpu") == {}
    assert trainer_arguments(Rank(), "cpu", read_strategy(model_parallel()))["num_nodes"] == 1


def test_lightning_says_of_its_strategies_whether_they_save_shards() -> None:
    """By attributes that are private to it; the bundle knows the same by the arguments."""
    cases: list[tuple[dict[str, Any], bool]] = [({}, True), ({"save_distributed_checkpoint": False}, False)]
    for arguments, shards in cases:
        assert saves_shards(ModelParallelStrategy(**arguments)) is shards
        assert read_strategy(model_parallel(**arguments)).saves_shards is shards
    for kind, shards in (("full", False), ("sharded", True)):
        made = FSDPStrategy(state_dict_type=kind)  # type: ignore[arg-type]
        assert saves_shards(made) is shards
        assert whole_file_argument(made) == 'state_dict_type="full"'
        said = {"class_path": "FSDPStrategy", "init_args": {"state_dict_type": kind}}
        assert read_strategy(said).saves_shards is shards
    assert not saves_shards(FSDPStrategy())
    assert not read_strategy("fsdp").saves_shards
