r"""
CoreCallback
^^^^^^^^^^^^

Joins a Trainer to a scheduler: reports, takes turns, holds, ends when the target is met.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

import lightning.pytorch as pl
import torch
from lightning.fabric.utilities.exceptions import MisconfigurationException
from typing_extensions import override

from lightning_core.drivers.local import LocalClient
from lightning_core.durations import parse_duration
from lightning_core.protocols import Client, Turns
from lightning_core.types import STEP_LOSS, Directive, End, Job, LossTarget, Target, Verdict

from .mailbox import Mailbox
from .meter import LossMeter
from .pace import GpuPace, HostPace, Pace

log = logging.getLogger(__name__)

# How long a held or waiting training thread sleeps before it looks around by itself, seconds.
LOOK = 1.0
# How long a launched job waits for the scheduler's first word before it trains without one, seconds.
FIRST_WORD = 10.0
# What weighs a turn before the first word; after the last one, what was granted last goes on to.
UNTOLD_DUTY = 0.1


class JobOver(Exception):
    """Leaves ``Trainer.fit`` of a launched job that the scheduler has ended; carries the directive that said so."""

    def __init__(self, end: End) -> None:
        super().__init__(f"{end.job}: {end.verdict}: {end.reason}")
        self.end = end


class CoreCallback(pl.Callback):
    """Reports loss and progress of a Trainer to a scheduler, and obeys what it grants.

    Training never waits for the scheduler and never fails because of it: if it is gone, the last grant holds.

    Args:
        job: name of the training run.
        deadline: time for it, such as ``"2h"``; only without ``client``.
        target: when it counts as met.
        client: speaks with a shared scheduler, which knows the job already. None: a scheduler of its own, in this
            process, with this one job.
        turns: the device's turnstile. None: the device is not shared.
        launched: whether a launcher runs this Trainer, so that it is left by :class:`JobOver` when the job is ended
            unmet. A plain script's Trainer just goes on.
        every: least batches in a loss cell.
        growth: a cell holds at least this part of the run so far.

    Raises:
        ValueError: if the deadline or the target is not positive.
        MisconfigurationException: if the deadline is missing, or given beside a ``client``; at the end of the first
            epoch of a launched job, if the target's metric has not been logged.

    .. note::
        With several processes (DDP) only rank 0 reports, and nobody takes turns or holds.

    Example::

        >>> from lightning_core import LossTarget
        >>> from lightning_core.callbacks import CoreCallback
        >>> callback = CoreCallback("resnet", deadline="2h", target=LossTarget("train_loss", 0.35))
    """

    def __init__(
        self,
        job: str,
        deadline: str | None = None,
        target: Target | None = None,
        *,
        client: Client | None = None,
        turns: Turns | None = None,
        launched: bool = False,
        every: int = 10,
        growth: float = 0.01,
    ) -> None:
        if target is None:
            raise MisconfigurationException("CoreCallback needs a target, such as LossTarget('train_loss', 0.35)")
        if (deadline is None) == (client is None):
            raise MisconfigurationException("CoreCallback needs either a deadline or the client of a scheduler")
        self._job = job
        self._target = target
        self._own = None if deadline is None else Job(job, parse_duration(deadline), target)
        self._client = client
        self._turns = turns
        self._launched = launched
        self._grid = {"every": every, "growth": growth}
        LossMeter(lambda cell: None, **self._grid)  # type: ignore[arg-type]  # complains now rather than in fit
        self._metric = target.metric if isinstance(target, LossTarget) else STEP_LOSS
        self._box: Mailbox | None = None
        self._pace: Pace = HostPace()
        self._batches = 0
        self._obeyed: Directive | None = None
        self._held_turn = False
        self._steered = True
        self._duty = UNTOLD_DUTY
        self._seen_metric = False

    # ------------------------------------------------------------------------------------------------ hooks

    @override
    def on_fit_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        if not trainer.is_global_zero:
            return
        client = self._client
        if client is None:
            assert self._own is not None  # the constructor saw to it
            client = LocalClient()
            client.submit(self._own)
        self._box = Mailbox(client, self._job)
        self._meter = LossMeter(self._box.add, **self._grid)  # type: ignore[arg-type]
        self._steered = trainer.world_size == 1
        self._duty = UNTOLD_DUTY
        self._pace = GpuPace() if pl_module.device.type == "cuda" else HostPace()
        self._obeyed = None
        self._held_turn = False
        self._seen_metric = False
        self._automatic = pl_module.automatic_optimization

    @override
    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self._batches = trainer.global_step
        if self._box is not None:
            self._box.began = self._batches
            self._meter.start_at(self._batches)
            if self._launched:
                self._box.wait(None, FIRST_WORD)

    @override
    def on_train_batch_start(self, trainer: pl.Trainer, *_: Any) -> None:
        if self._box is not None:
            self._enter(trainer)

    @override
    def on_train_batch_end(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        box = self._box
        if box is None:
            return
        # Lightning divides the loss by it, and may change it from epoch to epoch.
        accumulated = trainer.accumulate_grad_batches if self._automatic else 1
        if accumulated == 1:
            self._batches += 1
        else:
            self._batches = trainer.global_step
        self._measure(trainer, outputs, float(accumulated))
        box.progress = (self._batches, self._pace.batch(), self._meter.rejected)
        if box.directive is not self._obeyed:
            self._obey(trainer)

    @override
    def on_validation_batch_start(self, trainer: pl.Trainer, *_: Any) -> None:
        if self._box is not None:
            self._enter(trainer)

    @override
    def on_validation_batch_end(self, trainer: pl.Trainer, *_: Any) -> None:
        if self._box is not None:
            self._box.progress = (self._batches, self._pace.batch(), self._meter.rejected)

    @override
    def on_train_epoch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        # Validation has run by now, so whatever this training logs has been logged.
        if self._box is not None and isinstance(self._target, LossTarget) and not self._seen_metric:
            self._seen_metric = self._metric in trainer.callback_metrics
            if not self._seen_metric:
                self._complain(trainer)

    @override
    def on_fit_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self._close()

    @override
    def on_exception(self, trainer: pl.Trainer, pl_module: pl.LightningModule, exception: BaseException) -> None:
        self._close()

    # ------------------------------------------------------------------------------------------------ what they do

    @property
    def directive(self) -> Directive | None:
        """The newest word of the scheduler."""
        return None if self._box is None else self._box.directive

    def _enter(self, trainer: pl.Trainer) -> None:
        """Before a batch: does what the scheduler wants, lets others in if the turn is spent, waits for the turn.

        The turn is given up here, with the batch already loaded, and not when the last one ended: what lies between
        two batches belongs to the turn of whoever does it.
        """
        box = self._box
        if box is not None and box.directive is not self._obeyed:
            self._obey(trainer)
        turns = self._turns if self._steered else None
        if turns is not None and self._held_turn and turns.spent():
            self._end_turn(again=True)
        if not self._held_turn:
            while turns is not None and not turns.take(self._duty, LOOK):
                if box is not None and box.directive is not self._obeyed:
                    self._obey(trainer)
            self._begin_turn()

    def _begin_turn(self) -> None:
        self._held_turn = True
        self._pace.begin()

    def _end_turn(self, *, again: bool) -> None:
        if self._held_turn:
            self._held_turn = False
            self._pace.end()
        if self._turns is not None and self._steered:
            self._turns.give(again=again, duty=self._duty)

    def _obey(self, trainer: pl.Trainer) -> None:
        box = self._box
        assert box is not None
        while True:
            directive = self._obeyed = box.directive
            match directive:
                case End(verdict=Verdict.MET):
                    trainer.should_stop = True
                    return
                case End():
                    self._give_up(directive)
                    return
                case None:
                    return
            if directive.duty > 0:
                self._duty = directive.duty
            if directive.duty > 0 or not self._steered:
                return
            self._hold(box, directive)

    def _hold(self, box: Mailbox, directive: Directive) -> None:
        """Waits, memory kept, until the scheduler says something else."""
        self._end_turn(again=False)
        box.parked_at = directive
        while box.directive is directive:
            box.wait(directive, LOOK)

    def _give_up(self, end: End) -> None:
        self._end_turn(again=False)
        if self._launched:
            raise JobOver(end)
        log.warning("%s: %s: %s", self._job, end.verdict, end.reason)
        self._steered = False  # nobody grants it anything any more; the script goes on

    def _measure(self, trainer: pl.Trainer, outputs: Any, scale: float) -> None:
        if self._metric == STEP_LOSS:
            value = outputs.get("loss") if isinstance(outputs, Mapping) else outputs
        else:
            value = trainer.callback_metrics.get(self._metric)
            scale = 1.0
        if isinstance(value, torch.Tensor) and value.numel() == 1:
            self._seen_metric = True
            self._meter.add_tensor(value, scale, self._batches)
        elif isinstance(value, float | int):
            self._seen_metric = True
            self._meter.add(value * scale, self._batches)

    def _complain(self, trainer: pl.Trainer) -> None:
        names = ", ".join(sorted(trainer.callback_metrics)) or "nothing"
        text = f"target metric {self._metric!r} was never logged; logged so far: {names}"
        if self._metric == STEP_LOSS:
            text = "training_step returned no loss; return it, or name a metric that is logged in the target"
        if self._launched:
            raise MisconfigurationException(text)
        self._seen_metric = True  # say it once
        log.warning("%s: %s", self._job, text)

    def _close(self) -> None:
        box, self._box = self._box, None
        if box is not None:
            try:
                self._end_turn(again=False)
                self._meter.flush()
            finally:  # a device in trouble may have no answer; the scheduler must hear the end all the same
                box.close()
