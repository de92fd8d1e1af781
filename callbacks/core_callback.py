"""The callback that joins a Trainer to a scheduler: it reports the losses and obeys the directives."""

from __future__ import annotations

import weakref
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn

import lightning.pytorch as pl
from lightning.fabric.utilities.exceptions import MisconfigurationException
from typing_extensions import override

from lightning_core.agent.job_record import JobRecord, notebook_card
from lightning_core.agent.launched_script import RESUME, LaunchedScript, is_part_of_launched, launched_script
from lightning_core.agent.options import JobTerms, Options, read_on_refused
from lightning_core.agent.reporting.hang_watch import Phase
from lightning_core.agent.steering.fit_signals import JobEnded, JobReleased
from lightning_core.agent.steering.roll_call import RollCall
from lightning_core.core.answers import Directive, JobForecast, Verdict
from lightning_core.core.durations import When, parse_limit, refuse_base_60
from lightning_core.core.events import Checkpoint
from lightning_core.core.targets import Target
from lightning_core.variables import is_disabled, run_history, will_be_requeued
from lightning_core.view.console_lines import logger

from .checkpointing.best_model import check_keep_best
from .checkpointing.job_checkpointer import FILE, JobCheckpointer
from .checkpointing.job_writer import write
from .checkpointing.shards import CheckpointNotSavedError
from .elastic.steps import MicroBatches, micro_batches_per_step
from .fit import Fit
from .held_state import check_offload
from .logger_runs import call_it_a_success, finish_run
from .parent import ForParent, Left

log = logger(__name__)

# Deadline of a launched job in its own process, in seconds. Only its scheduler knows the real one.
UNKNOWN_DEADLINE = 1.0


class CoreCallback(pl.Callback):
    """Reports the losses of a Trainer to a scheduler, forecasts whether it meets its deadline, and obeys its pool.

    Training never waits for the scheduler and never fails because of it. While the scheduler is away, the last grant
    holds.

    Args:
        job: Name of the job, unique in its pool.
        deadline: Time limit counted from the start of ``fit``, such as ``"2 hours"``, ``"02:30:00"``, a number of
            seconds or a ``timedelta``; or the point in time by which the target should be met, such as ``"18:00"``,
            ``"2026-11-23T18:00"`` or a ``datetime``, in the machine's time zone unless it names one. None for none: a
            best-effort job trains on what jobs with deadlines leave.
        target: When the job counts as met: a target, or its one-line form such as ``"val_acc>=0.9"``.
        pool: ``"auto"`` joins the pool that runs on this machine, or forecasts without a pool if there is none;
            ``"local"`` never joins a pool; anything else is the address of a pool.
        weight: Relative importance when not all deadlines can be met.
        on_miss: What to do when the deadline passes: ``"continue"``, ``"stop"`` or ``"hold"``. The job of a script
            that is stopped is over; the script trains on while no other job needs its device.
        on_hold: What becomes of its memory on a GPU while it is held: ``"keep"`` leaves it there, ``"offload"`` moves
            the state to the host's memory, and back before training goes on, ``"suspend"`` takes the whole process off
            the GPU through the driver where it can, and otherwise offloads.
        on_nan: What to do when the losses are NaN or infinite for three loss cells in a row: ``"continue"`` or
            ``"stop"``. The first such loss is logged at once.
        on_refused: What to do while the name of the job is taken in the pool: ``"hold"`` waits and asks again every
            few seconds, ``"rename"`` joins under a free name such as ``resnet-2``, ``"alone"`` trains without the
            pool. If the pool can never take the job, for example because it has too few devices, the job trains
            without it.
        keep_best: Whether to save the best model, or the folder to save it in. It is the model that met the target or
            came closest to it; :attr:`best_model_path` is its path. True saves in ``lightning-core`` below
            ``default_root_dir``.
        hang: Time that a step may take, however short the others; one that takes longer, and 20 times as long as the
            longest before it, is reported as hanging. ``"off"`` for any time.
        like: Name or tag of earlier runs with a similar loss curve. By
            default earlier runs of the same module, metric and batch size are taken.
        stop_when_met: Whether to stop training when the target is met.
        every: Minimum batches per loss cell. A cell has at least 1% of the batches so far, too.

    Raises:
        ValueError: If a value is out of range, or the deadline is past.
        MisconfigurationException: If the target is missing.

    .. note::
        A batch is an optimizer step, gradient accumulation included; with manual optimization it is a call of
        ``training_step``. The loss is what ``training_step`` returned, else what was logged as ``loss``.

    .. note::
        Checkpoints carry the job's name, deadline, target and curve as the state of this callback, as plain data. They
        load where this package is not installed.

    .. note::
        What belongs to the machine rather than to the job is said by its environment: ``LIGHTNING_CORE_HISTORY`` names
        a folder in which runs are kept and found without a pool, ``LIGHTNING_CORE_BESIDE=never`` says that the job
        never trains at the same time as others on its device (``always``: whenever that makes no job late), and
        ``LIGHTNING_CORE_REQUEUE=yes`` says that the Slurm job is requeued when its time is up, so that forecast and
        verdict do not count that as the end.

    .. note::
        In a script that a pool has launched (``script:`` of a bundle), name, deadline, target and ``pool`` are those of
        the bundle. A job that is told to leave is saved and leaves ``fit`` by SystemExit with exit code 75. Pass
        ``ckpt_path=os.environ.get("LIGHTNING_CORE_RESUME")`` to ``fit``, so that it resumes.

    .. note::
        Written for the Trainer of ``lightning.pytorch``. The Trainer of ``pytorch_lightning`` accepts it in a list.

    .. note::
        With several processes (DDP, FSDP, ``ModelParallelStrategy``), rank 0 speaks for all. They hold, stop and leave
        together, after a training batch and never during validation, and do not take turns with other jobs. So are they
        saved before the end of their Slurm job.

    Example::

        >>> from lightning.pytorch import Trainer
        >>> from lightning_core.callbacks import CoreCallback
        >>> callback = CoreCallback("resnet", deadline="2h", target="train_loss<=0.35")
        >>> trainer = Trainer(callbacks=[callback], logger=False, enable_checkpointing=False)
    """

    # Not a property, as in Lightning, which reads it before every hook.
    state_key: str = ""
    """Key of the state in a checkpoint."""

    def __init__(
        self,
        job: str,
        deadline: When | None = None,
        target: Target | str | None = None,
        *,
        pool: str = "auto",
        weight: float = 1.0,
        on_miss: str = "continue",
        on_hold: str = "keep",
        on_nan: str = "continue",
        on_refused: str = "hold",
        keep_best: bool | str | Path = False,
        hang: float | str | None = "5m",
        like: str = "",
        stop_when_met: bool = True,
        every: int = 10,
    ) -> None:
        # A Trainer refuses two callbacks of one key; here the second one is ignored, until it speaks for a Trainer.
        self.state_key = self._generate_state_key(idle=id(self))
        self._fit: Fit | None = None
        self._record: JobRecord | None = None
        self._state_found: object = None
        self._trainer: weakref.ref[pl.Trainer] | None = None
        self._for_parent = ForParent()
        self._roll_call: RollCall | None = None
        # Only a launched job has a folder for its own checkpoints.
        self._folder: Path | None = None
        self._save_every = 300.0
        self._script: LaunchedScript | None = None
        self._checkpointer = self._new_checkpointer()
        if is_disabled():  # nothing is looked at, and no hook does anything
            return
        refuse_base_60(self, deadline=deadline, hang=hang)
        if target is None:
            raise MisconfigurationException("CoreCallback needs a target, such as 'train_loss<=0.35'")
        self._terms = JobTerms(job, deadline, target, weight, on_miss, on_nan, like, on_hold)
        self._options = Options(
            self._terms.job, pool, stop_when_met, every, read_on_refused(on_refused),
            keep_best if isinstance(keep_best, bool) else Path(keep_best),
            parse_limit(hang), run_history(), will_be_requeued(),
        )  # fmt: skip

    def __iter__(self) -> NoReturn:
        """Refuse to be iterated: the Trainer of ``pytorch_lightning`` takes an unknown callback for a list.

        Raises:
            TypeError: Always.
        """
        raise TypeError("pass CoreCallback in a list, callbacks=[CoreCallback(...)], to a pytorch_lightning.Trainer")

    def __getstate__(self) -> dict[str, Any]:
        """Return the state for pickling, without threads and sockets."""
        return {**self.__dict__, "_fit": None, "_trainer": None, "_roll_call": None}

    @property
    def directive(self) -> Directive | None:
        """The scheduler's newest directive; None between fits and on all ranks but the first."""
        return None if self._fit is None or self._fit.mailbox is None else self._fit.mailbox.inbox.directive

    @property
    def forecast(self) -> JobForecast | None:
        """The newest forecast: verdict, and seconds to the early, likely and late end. After ``fit``, the last one.

        None before the first forecast, and on all ranks but the first.
        """
        if self._fit is not None and self._fit.mailbox is not None and self._fit.mailbox.job_forecast is not None:
            return self._fit.mailbox.job_forecast
        return self._for_parent.look().forecast if self._record is None else self._record.job_forecast

    @property
    def verdict(self) -> Verdict | None:
        """The newest verdict; after ``fit``, the outcome of the job. None while it is too early to tell."""
        return None if self.forecast is None else self.forecast.verdict

    @property
    def best_model_path(self) -> str:
        """Path of the best model if ``keep_best`` is set; empty if there is none."""
        if self._fit is not None:
            return self._fit.best_model
        return self._for_parent.look().best_model if self._record is None else self._record.best_model

    @property
    def last_checkpoint(self) -> Checkpoint | None:
        """The newest checkpoint of a launched job; None for a script."""
        return self._checkpointer.last_checkpoint

    def _repr_html_(self) -> str:
        """Return a card with verdict, forecast and curve for notebooks."""
        if is_disabled():
            return ""
        over = self._fit is None
        return notebook_card(self._record, self._options.job, self.forecast, self.best_model_path, over=over)

    @override
    def setup(self, trainer: Any, pl_module: pl.LightningModule, stage: str) -> None:
        if is_disabled() or self._fit is not None:
            return  # the latter while it fits another Trainer, within whose fit this one fits
        self._trainer = None
        if stage != "fit" or trainer.fast_dev_run:
            return
        if _speakers.get(trainer) not in (None, self):
            if not is_part_of_launched():  # such a script is given one, whether it has its own or not
                log.warning("%s: ignored, because the Trainer has another CoreCallback", self._options.job.name)
            return
        if not self._take_over():
            return
        _speakers[trainer], self._trainer = self, weakref.ref(trainer)
        self.state_key = type(self).__qualname__
        check_offload(trainer, self._options.job)
        check_keep_best(trainer, self._options.keep_best)
        self._record = self._state_found = None
        per_step = micro_batches_per_step() if self._options.launched else 0
        self._checkpointer = self._new_checkpointer(MicroBatches(trainer, pl_module, per_step) if per_step else None)
        if self._options.launched:
            self._checkpointer.install(trainer)
            # First of all, to save a new epoch before its first hook. As a new list: the old one is being iterated.
            trainer.callbacks = [self, *(callback for callback in trainer.callbacks if callback is not self)]
        name, same = self._options.job.name, self._options.same_on_all_ranks()
        self._roll_call = RollCall(trainer, trainer.global_rank, trainer.world_size, name, same)
        self._roll_call.answer()

    def on_after_setup(self, **_: Any) -> NoReturn:
        """Refuse a Fabric, which calls this hook.

        Raises:
            TypeError: Always.
        """
        raise TypeError(
            "CoreCallback is for a Trainer; a Fabric takes lightning_core.integrations.fabric.CoreFabricCallback, or "
            "its loop lightning_core.track(..., fabric=fabric)"
        )

    def on_init_end(self, *_: Any, **__: Any) -> NoReturn:
        """Refuse a Trainer of ``transformers``, which calls this hook when it is made.

        Raises:
            TypeError: Always.
        """
        raise TypeError(
            "CoreCallback is for Lightning's Trainer; that of transformers takes "
            "lightning_core.integrations.transformers.CoreTrainerCallback"
        )

    def _serves(self, trainer: pl.Trainer) -> bool:
        """Return whether this callback speaks for a Trainer, or did in its last fit."""
        return self._trainer is not None and self._trainer() is trainer

    def _fit_of(self, trainer: pl.Trainer) -> Fit | None:
        """Return the fit of a Trainer; None if there is none, or only one of another Trainer."""
        fit = self._fit
        return fit if fit is not None and fit.trainer is trainer else None

    @override
    def on_fit_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        if self._serves(trainer):
            self._checkpointer.before_loaders(trainer)

    @override
    def on_sanity_check_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self._begin(trainer, pl_module)

    @override
    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self._begin(trainer, pl_module)
        if (fit := self._fit_of(trainer)) is not None:
            self._checkpointer.before_training(trainer)
            fit.begin_training(trainer)

    def _begin(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Begin before the first batch, when all strategies have loaded the checkpoint."""
        if not self._serves(trainer):
            return
        if self._fit is None:
            if self._roll_call is None or not self._roll_call.is_complete():
                self._trainer = None  # from now on every hook does nothing
                return
            record = self._record = self._new_record(trainer)
            options = replace(self._options, job=record.job)
            self._fit = Fit(trainer, pl_module, options, self._checkpointer, record, script=self._script)
        if (fit := self._fit_of(trainer)) is not None:
            self._check_resumed(trainer)
            fit.begin(trainer)

    @override
    def on_train_epoch_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        if (fit := self._fit_of(trainer)) is not None:
            self._checkpointer.before_epoch(trainer)
            fit.begin_epoch(trainer)

    @override
    def on_train_batch_start(self, trainer: pl.Trainer, *_: Any) -> None:
        if (fit := self._fit) is not None and fit.trainer is trainer:
            fit.begin_batch()

    @override
    def on_train_batch_end(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        if (fit := self._fit) is not None and fit.trainer is trainer:
            fit.end_batch(trainer, outputs)

    @override
    def on_validation_start(self, trainer: pl.Trainer, *_: Any) -> None:
        if (fit := self._fit_of(trainer)) is not None:
            fit.begin_validation()

    @override
    def on_validation_batch_start(self, trainer: pl.Trainer, *_: Any) -> None:
        if (fit := self._fit_of(trainer)) is not None:
            fit.begin_batch(Phase.VALIDATION)

    @override
    def on_validation_batch_end(self, trainer: pl.Trainer, *_: Any) -> None:
        if (fit := self._fit_of(trainer)) is not None:
            fit.end_validation_batch()

    @override
    def on_validation_epoch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        if (fit := self._fit_of(trainer)) is not None and not trainer.sanity_checking:
            fit.complete_validation()

    @override
    def on_validation_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        if (fit := self._fit_of(trainer)) is not None and not trainer.sanity_checking:
            fit.end_validation(trainer)

    @override
    def on_train_epoch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        if (fit := self._fit_of(trainer)) is not None:
            fit.end_epoch()

    @override
    def on_train_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        if (fit := self._fit_of(trainer)) is not None:
            fit.end_training(trainer)

    @override
    def on_save_checkpoint(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, checkpoint: dict[str, Any]
    ) -> None:
        if not self._serves(trainer):  # of another Trainer, whose fit this one is within
            checkpoint.get("callbacks", {}).pop(self.state_key, None)
            return
        if self._fit is not None:
            self._fit.hangs.excuse(saves=True)
        self._checkpointer.adapt(checkpoint)

    @override
    def on_load_checkpoint(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, checkpoint: dict[str, Any]
    ) -> None:
        if self._serves(trainer) and self._options.launched:
            self._checkpointer.take_from(trainer, checkpoint, checkpoint["callbacks"].get(self.state_key))

    @override
    def state_dict(self) -> dict[str, Any]:
        """Return the job's record as plain data, or what a launched job resumes by; empty on ranks that keep none."""
        if self._trainer is None or (trainer := self._trainer()) is None:
            return {}
        if self._options.launched:
            return self._checkpointer.state_dict()
        return {**self._record.to_entry()} if self._record is not None and trainer.is_global_zero else {}

    @override
    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Resume the job from the state in a checkpoint when the fit begins."""
        self._state_found = state_dict

    @override
    def on_fit_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        if self._fit_of(trainer) is not None:
            self._write_last(trainer)
        self._close(trainer)
        if self._roll_call is not None:
            self._roll_call.withdraw(trainer)

    @override
    def on_exception(self, trainer: pl.Trainer, pl_module: pl.LightningModule, exception: BaseException) -> None:
        told = exception.__cause__ if isinstance(exception, SystemExit) else None
        if self._fit_of(trainer) is None or not isinstance(told, JobEnded | JobReleased):
            self._close(trainer, exception)
            return
        if type(told) is JobEnded:
            self._write_last(trainer)
        self._close(trainer, told)
        call_it_a_success(trainer)
        finish_run(well=True)

    @override
    def teardown(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:
        self._close(trainer)

    def _take_over(self) -> bool:
        """Become the callback of a launched job, in its script; return whether this fit may speak for a job."""
        script = launched_script()
        if script is None:
            return True
        if not script.begin_training():
            log.warning("%s: this process has trained its job already: this fit is no part of it", script.job)
            return False
        self._script = script
        self._terms = JobTerms(script.job, UNKNOWN_DEADLINE, script.target, on_hold=script.on_hold)
        self._options = replace(
            self._options, job=self._terms.job, client=script.client(), device_lock=script.device_lock(), launched=True,
            incarnation=script.incarnation, devices=script.devices, cores=script.cores, hang=script.hang,
            every=script.every, give_up=script.give_up, suspender=script.suspender,
        )  # fmt: skip
        self._folder, self._save_every = script.folder, script.save_every
        return True

    def _check_resumed(self, trainer: pl.Trainer) -> None:
        """Warn if a script was told from where to resume, and has begun anew."""
        script = self._script
        if script is not None and script.resume_path is not None and not trainer.ckpt_path:
            log.warning("%s: begins anew, though there is a checkpoint: pass ckpt_path=os.environ.get('%s') to fit",
                        script.job, RESUME)  # fmt: skip

    def _write_last(self, trainer: pl.Trainer) -> None:
        """Write the last checkpoint of a launched job in its own script; elsewhere its worker does."""
        if self._script is None or self._folder is None:
            return
        try:
            write(trainer, self._folder / FILE)
        except CheckpointNotSavedError as error:  # the training has ended all the same
            log.warning("%s: its last checkpoint could not be written: %s", self._script.job, error)

    def _new_checkpointer(self, micro_batches: MicroBatches | None = None) -> JobCheckpointer:
        return JobCheckpointer(self._folder, self._save_every, micro_batches)

    def _new_record(self, trainer: pl.Trainer) -> JobRecord:
        """Return the record of the fit that begins; on rank 0 of a script it continues what the checkpoint held."""
        found, self._state_found = self._state_found, None
        continues = trainer.is_global_zero and not self._options.launched
        return JobRecord.for_fit(self._terms.job_now(), self._terms.deadline_text, found if continues else None)

    def _close(self, trainer: pl.Trainer, error: BaseException | None = None) -> None:
        if _speakers.get(trainer) is self:
            del _speakers[trainer]
        if (fit := self._fit_of(trainer)) is not None:
            self._fit = None
            fit.close(error)
            if self._record is not None and trainer.is_global_zero:
                self._for_parent.leave(trainer, Left(self._record.job_forecast, self._record.best_model))


# The callback that speaks for each Trainer whose fit is under way: a Trainer may have several, one within another.
_speakers: weakref.WeakKeyDictionary[pl.Trainer, CoreCallback] = weakref.WeakKeyDictionary()
