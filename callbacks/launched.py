"""The callback of a launched job, for the worker that trains it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from lightning_core.core.protocols import Client, DeviceLock
from lightning_core.core.targets import Target

from .core_callback import UNKNOWN_DEADLINE, CoreCallback


class LaunchedCallback(CoreCallback):
    """Joins the Trainer of a launched job to the scheduler that has launched it.

    It holds until the job may train. The job leaves ``Trainer.fit`` by an exception of
    :mod:`lightning_core.agent.steering.fit_signals`: ``JobEnded`` when it is over with its target unmet,
    ``JobReleased`` when it has been saved and is granted no devices, or others.

    Args:
        job: Name of the job.
        target: Target of the job.
        client: Client of its scheduler.
        device_lock: Lock of its device; None if the device is not shared.
        incarnation: Incarnation of the job that this process trains.
        devices: Devices that the job trains on.
        cores: Cores of its device if that is a CPU.
        folder: Folder where ``last.ckpt`` is saved; None to save nothing.
        save_every: Minimum seconds between two periodic checkpoints.
        keep_best: Folder where the best model is saved; False to save none.
        hang: Time that any step may take, as of :class:`CoreCallback`.
        on_hold: What becomes of its memory on a GPU while it is held, as of :class:`CoreCallback`.
        give_up: Function that ends the process of a training that hangs, as of
            :class:`~lightning_core.agent.reporting.mailbox.Mailbox`; given a cause too, of one that is lost.
        suspender: Path of the socket of its device's suspender; None if there is none.
        every: Minimum batches per loss cell.

    Raises:
        ValueError: If a value is out of range.
        MisconfigurationException: At the end of the first epoch, if the target's metric was not logged.
    """

    def __init__(
        self,
        job: str,
        target: Target | str,
        *,
        client: Client,
        device_lock: DeviceLock | None = None,
        incarnation: int = 1,
        devices: tuple[int, ...] = (0,),
        cores: int = 1,
        folder: Path | None = None,
        save_every: float = 300.0,
        keep_best: bool | str | Path = False,
        hang: float | str | None = "5m",
        on_hold: str = "keep",
        give_up: Callable[..., None] | None = None,
        suspender: Path | None = None,
        every: int = 10,
    ) -> None:
        super().__init__(job, UNKNOWN_DEADLINE, target, on_hold=on_hold, keep_best=keep_best, hang=hang, every=every)
        self._options = replace(
            self._options, client=client, device_lock=device_lock, launched=True, incarnation=incarnation,
            devices=devices, cores=cores, give_up=give_up, suspender=suspender,
        )  # fmt: skip
        self._folder, self._save_every = folder, save_every
        self._checkpointer = self._new_checkpointer()
