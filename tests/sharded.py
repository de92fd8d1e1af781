"""Trainings on several ranks whose parameters may be sharded, as a worker trains them; their client is the test's."""

from __future__ import annotations

import os
import signal
import threading
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import torch
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.utils.data import DataLoader

from lightning_core.agent.steering import ranks as agreement
from lightning_core.bundle.strategies import read_strategy
from lightning_core.callbacks import ElasticLoader
from lightning_core.callbacks.launched import LaunchedCallback
from lightning_core.core.answers import Grant
from lightning_core.core.reasons import Reason
from lightning_core.core.targets import parse_target
from lightning_core.storage.job_checkpoints import checkpoint_folder, find
from lightning_core.worker.process_group import Rank, joined_ranks, trainer_arguments
from tests.callbacks.test_callback import ConnectedScript, Script, grant
from tests.matrix.training import digest
from tests.tiny import QUIET, Batch, Net, Noisy, NoisyPoints
from tests.waiting import until

MODEL_PARALLEL = "lightning.pytorch.strategies.ModelParallelStrategy"
# Strategies by the head of their column, each with what a config says of it.
STRATEGIES: dict[str, Any] = {
    "DDP": "ddp",
    "FSDP": {"class_path": "lightning.pytorch.strategies.FSDPStrategy", "init_args": {"state_dict_type": "sharded"}},
    "FSDP2": {"class_path": MODEL_PARALLEL},
    "tensor parallel": {"class_path": MODEL_PARALLEL, "init_args": {"tensor_parallel_size": 2}},
}
# Those that save one file, by the same heads.
WHOLE: dict[str, Any] = {
    "DDP": "ddp",
    "FSDP": "fsdp",
    "FSDP2": {"class_path": MODEL_PARALLEL, "init_args": {"save_distributed_checkpoint": False}},
    "tensor parallel": {
        "class_path": MODEL_PARALLEL, "init_args": {"tensor_parallel_size": 2, "save_distributed_checkpoint": False}
    },
}  # fmt: skip


class ShardedNet(Net):
    """Two layers with dropout and Adam, sharded as the strategy says, in double precision."""

    def __init__(self) -> None:
        super().__init__()
        self.body = torch.nn.Sequential(
            torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Dropout(0.3), torch.nn.Linear(8, 1)
        ).double()
        self.bad_from = -1
        self.losses: dict[int, float] = {}

    def configure_model(self) -> None:
        if self._device_mesh is None:  # DDP, or FSDP, which wraps the module itself
            return
        together = self.device_mesh["tensor_parallel"]  # type: ignore[index]
        if together.size() > 1:
            plan: Any = {"0": ColwiseParallel(), "3": RowwiseParallel()}
            parallelize_module(self.body, together, plan)
        else:
            apart = self.device_mesh["data_parallel"]  # type: ignore[index]
            fully_shard(self.body[0], mesh=apart)
            fully_shard(self.body, mesh=apart)

    def training_step(self, batch: Batch, batch_idx: int) -> torch.Tensor:
        index, x, y = batch
        self.seen.append(index.tolist())
        time.sleep(self.pause)
        loss = torch.nn.functional.mse_loss(self.body(x.double()), y.double())
        self.losses[self.global_step] = float(loss.detach())
        return loss * float("nan") if 0 <= self.bad_from <= self.global_step else loss

    def validation_step(self, batch: Batch, batch_idx: int) -> None:
        _, x, y = batch
        loss = torch.nn.functional.mse_loss(self.body(x.double()), y.double())
        self.log("val_loss", loss, sync_dist=True)

    def on_train_batch_end(self, *_: Any) -> None:
        """Keep no average of weights, which would need all of them."""


class ElasticPoints(NoisyPoints):
    """Points for any number of ranks."""

    def train_dataloader(self) -> Any:
        return ElasticLoader(_Plain(), 2, seed=5)


class _Plain(Noisy):
    def __getitem__(self, index: int) -> tuple[torch.Tensor, ...]:
        return torch.tensor(index), self.x[index], self.y[index]


class PlainPoints(NoisyPoints):
    """Points whose loader has no state."""

    def train_dataloader(self) -> Any:
        return DataLoader(Noisy(), batch_size=4, shuffle=True)


DATA = {"placed": NoisyPoints, "plain": PlainPoints, "elastic": ElasticPoints}


def _kind() -> str:
    return "gpu" if os.environ.get("TESTS_ON_GPUS") else "cpu"


def whole(state: Any) -> Any:
    """Return a state with all parameters whole; called on all ranks."""
    if isinstance(state, DTensor):
        return state.full_tensor()
    if isinstance(state, dict):
        return {key: whole(value) for key, value in state.items()}
    return state


def train(home: str, column: str, incarnation: int, options: dict[str, Any]) -> dict[str, Any]:
    """Train as :func:`train_rank`, with its options as plain data."""
    if _kind() == "gpu":  # as a worker, each rank sees one
        os.environ["CUDA_VISIBLE_DEVICES"] = os.environ.get("RANK", "0")
    return train_rank(home, column, incarnation, **options)


def train_rank(
    home: str,
    column: str,
    incarnation: int = 1,
    *,
    target: str = "25 batches",
    leave_at: int = 0,
    data: str = "placed",
    micro_batches: int = 0,
    one_file: bool = False,
    save_every: float = 300.0,
    keep_best: bool = False,
    hold_at: int = 0,
    fault: str = "",
    dropout: bool = True,
    bad_from: int = -1,
    pause: float = 0.0,
) -> dict[str, Any]:
    """Train one incarnation of a job on one of its ranks, and return what a test compares.

    Args:
        home: Folder of the job.
        column: Head of the column of the strategy.
        incarnation: Number of the incarnation; it starts from what is in its folder.
        target: Target of the job.
        leave_at: Batch at which it is told to leave; 0 for never.
        data: Kind of its loader.
        micro_batches: Micro-batches of a step if it can be resized.
        one_file: Whether the strategy is to save one file.
        save_every: Seconds between two periodic checkpoints.
        keep_best: Whether the best model is kept.
        hold_at: Batch at which it is held for a moment, before it is told to leave; 0 for never.
        fault: Name of a function of this module that is called before it trains.
        dropout: Whether the model draws random numbers.
        bad_from: Batch from which the losses are NaN; -1 for never.
        pause: Seconds that a batch sleeps.
    """
    torch.set_num_threads(1)
    agreement.batches_between = lambda *_: 1  # on a busy machine an agreement takes longer than many of these batches
    number, of = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
    rank = Rank(number, of, port=int(os.environ.get("MASTER_PORT", "0")), micro_batches=micro_batches)
    strategy = read_strategy((WHOLE if one_file else STRATEGIES)[column])
    folder = checkpoint_folder(Path(home), incarnation)
    folder.mkdir(parents=True, exist_ok=True)
    script = Script(grant(1, 1.0)._replace(devices=tuple(range(of))))
    holder = _HeldFor(of)

    class Told(pl.Callback):
        def on_train_batch_end(self, trainer: pl.Trainer, *_: Any) -> None:
            if trainer.is_global_zero and leave_at and trainer.global_step >= leave_at:
                fit: Any = core._fit
                fit.mailbox.inbox.directive = Grant("job", 9, 0.0, (), Reason("makes_room"))
            if trainer.is_global_zero and hold_at and trainer.global_step == hold_at:
                holder.start(core._fit, model)

    if fault:
        globals()[fault](number)
    pl.seed_everything(5, verbose=False)
    with joined_ranks(rank, strategy):
        core = LaunchedCallback(
            "job", parse_target(target), client=script, devices=tuple(range(of)), folder=folder, save_every=save_every,
            keep_best=Path(home) if keep_best else False, every=1,
        )  # fmt: skip
        arguments = trainer_arguments(rank, _kind(), strategy)
        made = arguments.get("strategy")
        options: dict[str, Any] = {**QUIET, "accelerator": _kind(), "devices": 1, **arguments}
        if made is not None:
            options["strategy"] = getattr(pl.strategies, strategy.name)(**made["init_args"])
        trainer = pl.Trainer(**options, max_epochs=-1, callbacks=[core, Told()])
        model = ShardedNet()
        model.bad_from, model.pause = bad_from, pause
        if not dropout:
            model.body[2] = torch.nn.Identity()
        found = find(folder)
        try:
            trainer.fit(model, datamodule=DATA[data](), ckpt_path=None if found is None else found.path)
            ended = "ended"
        except Exception as error:
            ended = f"{type(error).__name__}: {error}"
            if "Job" not in ended:
                raise
        holder.join()
        return {
            "ended": ended, "steps": trainer.global_step,
            "losses": {str(step): loss for step, loss in model.losses.items()},
            "weights": "" if column == "FSDP" else digest(whole(trainer.strategy.lightning_module_state_dict())),
            "seen": model.seen, "best": core.best_model_path, "held": [holder.stood_still, holder.went_on],
            "saved": None if core.last_checkpoint is None else list(core.last_checkpoint),
        }  # fmt: skip


class _HeldFor:
    """Holds a job for a moment, looks whether it stands still meanwhile and goes on afterwards, and lets it leave."""

    def __init__(self, of: int) -> None:
        self._devices = tuple(range(of))
        self._thread = threading.Thread()
        self.stood_still = self.went_on = False

    def start(self, fit: Any, model: ShardedNet) -> None:
        if self._thread.ident is None:
            fit.mailbox.inbox.directive = Grant("job", 2, 0.0, self._devices, Reason("fixed_share"))
            self._thread = threading.Thread(target=self._hold, args=(fit.mailbox.inbox, model))
            self._thread.start()

    def _hold(self, inbox: Any, model: ShardedNet) -> None:
        until(lambda: inbox.parked)
        before = len(model.losses)
        time.sleep(0.3)
        self.stood_still = len(model.losses) == before
        inbox.take(Grant("job", 3, 1.0, self._devices, Reason("fixed_share")))
        until(lambda: len(model.losses) > before)
        self.went_on = True
        inbox.take(Grant("job", 9, 0.0, (), Reason("makes_room")))

    def join(self) -> None:
        if self._thread.ident is not None:
            self._thread.join()


def train_in_slurm(folder: str, column: str, batches: int, warned_after: float = 0.0) -> list[Any]:
    """Train a script in a Slurm job of two tasks, which sends each of them a signal; return its first and last step.

    Args:
        folder: Default root folder of its Trainer.
        column: Head of the column of the strategy.
        batches: Batches that it trains.
        warned_after: Seconds of training after which the signal comes; 0 for never.
    """
    from lightning.fabric.plugins.environments.slurm import SLURMEnvironment

    torch.set_num_threads(1)
    rank = int(os.environ["RANK"])
    told = {"JOB_ID": "7", "NTASKS": "2", "NTASKS_PER_NODE": "2", "JOB_NAME": "train", "PROCID": str(rank),
            "LOCALID": str(rank), "NODEID": "0", "NODELIST": "localhost"}  # fmt: skip
    os.environ |= {f"SLURM_{name}": value for name, value in told.items()}
    os.environ |= {"PATH": f"{folder}/bin:{os.environ['PATH']}", "SLURM_JOB_END_TIME": str(int(time.time()) + 3600)}
    steps: list[int] = []

    class Warned(pl.Callback):
        def on_train_batch_start(self, trainer: pl.Trainer, *_: Any) -> None:
            steps.append(trainer.global_step)
            if warned_after and len(steps) == 1:  # not to both at once, as real signals come
                threading.Timer(warned_after + 0.007 * rank, os.kill, (os.getpid(), signal.SIGUSR1)).start()

    pl.seed_everything(5, verbose=False)
    strategy = read_strategy(STRATEGIES[column])
    backend = "gloo" if _kind() == "cpu" else "nccl"
    made = getattr(pl.strategies, strategy.name)(**strategy.for_ranks(2, backend, timedelta(seconds=20))["init_args"])
    core = ConnectedScript("job", "1000000 batches", client=Script(grant(1, 1.0)))
    trainer = pl.Trainer(
        **{**QUIET, "accelerator": _kind()}, max_steps=batches, max_epochs=-1, devices=2, strategy=made,
        callbacks=[core, Warned()], plugins=[SLURMEnvironment()], default_root_dir=folder,
    )  # fmt: skip
    model = ShardedNet()
    model.pause = 0.01
    trainer.fit(model, datamodule=NoisyPoints())
    return [steps[0], trainer.global_step]


# ------------------------------------------------------------------------------------------------------------- faults


def full_disk_on_rank_1(rank: int) -> None:
    """Let the first checkpoint of rank 1 find no space."""
    from torch.distributed.checkpoint import filesystem

    write = filesystem.FileSystemWriter.write_data
    failed: list[bool] = []

    def once(self: Any, *args: Any, **options: Any) -> Any:
        if rank == 1 and not failed:
            failed.append(True)
            raise OSError(28, "No space left on device")
        return write(self, *args, **options)

    filesystem.FileSystemWriter.write_data = once  # type: ignore[method-assign]


def other_disk_on_rank_1(rank: int) -> None:
    """Let rank 1 not see what rank 0 writes."""
    is_dir = Path.is_dir
    if rank == 1:
        Path.is_dir = lambda self, **_: "unfinished-" not in str(self) and is_dir(self)  # type: ignore[method-assign]


class LiveNet(ShardedNet):
    """A sharded model for a live pool.

    Args:
        pause: Seconds that a batch sleeps.
        bad_from: Batch from which the losses of its first incarnation are NaN; -1 for never.
        mark: File by which a later incarnation knows that there was one.
    """

    def __init__(self, pause: float = 0.0, bad_from: int = -1, mark: str = "") -> None:
        super().__init__()
        self.pause, self.bad_from, self.mark = pause, bad_from, mark

    def on_fit_start(self) -> None:
        if self.mark and Path(self.mark).exists():
            self.bad_from = -1

    def training_step(self, batch: Batch, batch_idx: int) -> torch.Tensor:
        loss = super().training_step(batch, batch_idx)
        if loss.isnan():
            Path(self.mark).touch()
        return loss
