"""Any loop of one's own: it is wrapped in ``with track(...) as run``, and says when a batch is done.

A loop that iterates over ``run.batches(loader)`` is told apart into batches and the waits between them. One that calls
``run.step(...)`` after each batch is not: what it does between two steps counts as one batch.

A loop that is in no ``with`` ends with its process or, in IPython, with a cell that uses it and raises. One that was
left ends when a loop of its name begins or, in a later cell, any training.
"""

from __future__ import annotations

import atexit
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any, Generic, Self, TypeVar

from lightning_core.agent.environment import read
from lightning_core.agent.job_record import JobRecord, notebook_card
from lightning_core.agent.launched_script import RESUME, LaunchedScript, launched_script
from lightning_core.agent.options import JobTerms, Options, read_on_refused
from lightning_core.agent.reporting.hang_watch import Phase
from lightning_core.agent.reporting.joining import class_path
from lightning_core.agent.steering.roll_call import all_ranks_begin
from lightning_core.core.answers import Directive, JobForecast, Verdict
from lightning_core.core.durations import When, parse_limit, refuse_base_60
from lightning_core.core.jobs import OnHold
from lightning_core.core.limits import MAX_COUNT
from lightning_core.core.targets import Target
from lightning_core.integrations.cells import thread_here, watch_cells
from lightning_core.integrations.loop_training import (
    LoopEnd,
    LoopMetrics,
    LoopTraining,
    ModelSaid,
    Place,
    place_here,
    place_of_fabric,
)
from lightning_core.variables import PREFIX, is_disabled, run_history, will_be_requeued
from lightning_core.view.console_lines import inform, logger

log = logger(__name__)
T = TypeVar("T")

# Counts the changes of what a state holds.
FORMAT = 1
# Losses that are logged without a batch before that is warned about: a batch may log some.
MANY = 10
# What makes the batches of a loop known.
EPOCHS_BY_STEPS = (
    "its target counts epochs, which run.step() does not know: iterate over run.batches(loader), or name a number of "
    "batches"
)
HOW = "iterate over run.batches(loader), or call run.step(loss=...) after each batch"
# Deadline of a launched job in its own process, in seconds. Only its scheduler knows the real one.
UNKNOWN_DEADLINE = 1.0
# Runs of this process that have begun and not ended, in the order in which they began.
_open: list[Run] = []


class Run:
    """One training of a plain loop, as :func:`track` returns it.

    It joins its pool with its first batch, or when it is first asked whether it is over: what is built before is built
    ahead, while the job may still be held.
    """

    def __init__(
        self,
        terms: JobTerms | None,
        options: Options | None,
        place: Callable[[], Place],
        end: LoopEnd,
        said: ModelSaid,
        script: LaunchedScript | None = None,
        accumulated: int = 1,
        *,
        is_named: bool = False,
    ) -> None:
        self._script, self._accumulated, self._is_named = script, accumulated, is_named
        self._save: Callable[[Path], object] | None = None
        self._terms, self._options = terms, options
        self.place = place
        """Returns where this process trains; asked with the first batch."""
        self.end = end
        """Where the loop ends by itself."""
        self._said = said
        self._values = LoopMetrics()
        self._outputs: dict[str, Any] = {}
        self._training: LoopTraining | None = None
        self._record: JobRecord | None = None
        self._state: Mapping[str, Any] = {}
        self._begun = self._closed = options is None
        self._in_batch = self._is_entered = self._is_left = False
        self._over = False
        self._idle_evaluations = self._unseen_losses = 0
        self._thread = (0, 0)
        self._end_watch: Callable[[], None] | None = None

    @property
    def name(self) -> str:
        """Name of the job; empty for a run that does nothing."""
        return "" if self._options is None else self._options.job.name

    @property
    def target(self) -> Target | None:
        """Target of the job; None for a run that does nothing."""
        return None if self._options is None else self._options.job.target

    @property
    def has_begun(self) -> bool:
        """Whether the first batch has begun."""
        return self._begun and self._options is not None

    # --------------------------------------------------------------------------------------------------- the loop

    def begin(self) -> None:
        """Join, and wait until this process may train; the first batch does it too."""
        self._begin()

    def batches(self, loader: Iterable[T]) -> Iterable[T]:
        """Return the batches of an epoch; each ends when the next one is asked for, or with the loop.

        There are no more of them once the run is over: then :attr:`over` is true, and the loop around it is to end too.

        Args:
            loader: Loader of the training, or any iterable. Its length, if it has one, is that of an epoch, and its
                ``batch_size`` that by which earlier runs are compared.
        """
        return _Batches(self._each_of, loader)

    def _each_of(self, loader: Iterable[T]) -> Iterator[T]:
        accumulated, length = self._accumulated, _length_of(loader)
        per_epoch = length and -(-length // accumulated)
        training = self._begin(per_epoch, getattr(loader, "batch_size", None))
        if training is None:
            yield from loader
            return
        if self._was_over(training):
            return
        training.begin_epoch(per_epoch)
        done = micro = 0
        losses: list[Any] = []
        hangs, is_kept = training.hangs, False
        for batch in loader:
            if is_kept:
                hangs.in_loader = False
            else:
                training.begin_batch(Phase.STEP)
            self._in_batch, self._outputs = True, {}
            micro += 1
            try:
                yield batch
            except GeneratorExit:  # left by break or return: the batch was done if it has said anything
                self._in_batch = False
                if not self._closed:
                    if self._outputs:
                        training.end_batch(self._outputs)
                    training.end_epoch()
                raise
            self._in_batch = False
            is_kept = accumulated == 1 and training.keep_batch(self._outputs)
            if is_kept:
                hangs.in_loader = True
                done += 1
                continue
            if micro % accumulated and micro != length:
                losses.append(self._outputs.get("loss"))
                training.end_micro_batch()
                continue
            self._end_batch(training, losses)
            done += 1
            if training.is_over:
                break
        if not training.is_over or done == per_epoch:
            training.end_epoch()
        self._over = training.is_over

    def _was_over(self, training: LoopTraining) -> bool:
        """Return whether a run is over as a pass begins; a loop that begins a second one so is told to end."""
        if training.is_over and self._over:
            training.warn_once("is over, and its loop goes on: end that too, with `if run.over: break`")
        self._over = training.is_over
        return self._over

    def _end_batch(self, training: LoopTraining, losses: list[Any]) -> None:
        """End a batch; its loss is the mean of those that were accumulated in it, which are put away."""
        if losses:
            self._outputs["loss"] = _mean([*losses, self._outputs.get("loss")])
            losses.clear()
        training.end_batch(self._outputs)

    def validation_batches(self, loader: Iterable[T]) -> Iterable[T]:
        """Return the batches of a validation, before each of which the job waits for its turn.

        A loop may validate without it: then the whole validation is one turn.

        Args:
            loader: Loader of the validation, or any iterable.
        """
        return _Batches(self._each_of_validation, loader)

    def _each_of_validation(self, loader: Iterable[T]) -> Iterator[T]:
        training = self._begin()
        if training is None:
            yield from loader
            return
        training.hangs.begin(Phase.VALIDATION_BATCH)
        for batch in loader:
            training.begin_batch(Phase.VALIDATION)
            yield batch
            training.end_validation_batch()
        if self._in_batch:
            training.hangs.begin(Phase.STEP)
        else:
            training.hangs.excuse()

    def begin_validation_batch(self) -> None:
        """Wait until this process may do a batch of validation, in a loop that says when one begins and ends."""
        if (training := self._begin()) is not None:
            training.begin_batch(Phase.VALIDATION)

    def end_validation_batch(self) -> None:
        """Note that a batch of validation is done; what comes now may take any time."""
        if (training := self._begin()) is not None:
            training.end_validation_batch()
            training.hangs.excuse()

    def step(self, loss: Any = None, **metrics: Any) -> None:
        """Note that a batch is done, and wait until this process may do the next one.

        Within :meth:`batches` it notes the values alone, as :meth:`log` does.

        Args:
            loss: Loss of the batch: a number, or a tensor of one element.
            metrics: Other values of the batch.
        """
        self.log(loss, **metrics)
        if self._in_batch or (training := self._begin()) is None:
            return
        if training.counts_epochs:
            training.warn_once(EPOCHS_BY_STEPS)
        outputs, self._outputs = self._outputs, {}
        if training.keep_batch(outputs):
            return
        training.end_batch(outputs)
        if not training.is_over:
            training.begin_batch(Phase.STEP)

    def log(self, loss: Any = None, **metrics: Any) -> None:
        """Note values of the batch that is under way.

        Args:
            loss: Loss of the batch: a number, or a tensor of one element. Or a mapping of values by name.
            metrics: Other values of the batch, by name; a target may be about any of them.
        """
        if type(loss) is dict:
            metrics = {**loss, **metrics}
            loss = metrics.pop("loss", None)
        if loss is not None:
            if not self._in_batch and "loss" in self._outputs:
                self._note_unseen_loss()
            self._outputs["loss"] = loss
        if metrics:
            self._values.newest.update(metrics)
            self._outputs.update({name: value for name, value in metrics.items() if name != "loss"})

    def _note_unseen_loss(self) -> None:
        """Warn of losses that are logged one after the other, where no batch has ended in between."""
        self._unseen_losses += 1
        if self._unseen_losses == MANY and not self._closed:
            log.warning("%s: logs losses, and none of its batches is known: %s", self.name, HOW)

    def evaluate(self, **metrics: Any) -> None:
        """Note the values of a whole evaluation, such as ``val_acc=0.91``.

        With several processes those of rank 0 count, and it need not be called on the others.

        Args:
            metrics: Values by name: numbers, or tensors of one element.
        """
        training = self._begin()
        if training is None:
            return
        if training.batches:  # before the first batch there is nothing to forecast from
            training.read_kept()
            self._values.newest.update(metrics)
            self._values.has_validation = True
            training.evaluate()
        else:
            self._idle_evaluations += 1
            if self._idle_evaluations > 1:
                training.warn_once(f"is evaluated, and has done no batch: {HOW}")

    @property
    def over(self) -> bool:
        """Whether the loop is to end: its target is met, or the job was cancelled.

        Asked before the first batch, it waits until this process may train.
        """
        training = self._begin()
        return self._over if training is None else training.is_over

    # ----------------------------------------------------------------------------------------------- what it says

    @property
    def directive(self) -> Directive | None:
        """The scheduler's newest directive; None before the first batch, and on all ranks but the first."""
        mailbox = None if self._training is None else self._training.mailbox
        return None if mailbox is None else mailbox.inbox.directive

    @property
    def forecast(self) -> JobForecast | None:
        """The newest forecast: verdict, and seconds to the early, likely and late end. After the end, the last one.

        None before the first forecast, and on all ranks but the first.
        """
        mailbox = None if self._training is None else self._training.mailbox
        if mailbox is not None and not self._closed and mailbox.job_forecast is not None:
            return mailbox.job_forecast
        return None if self._record is None else self._record.job_forecast

    @property
    def verdict(self) -> Verdict | None:
        """The newest verdict; after the end, the outcome of the job. None while it is too early to tell."""
        return None if self.forecast is None else self.forecast.verdict

    def _repr_html_(self) -> str:
        """Return a card with verdict, forecast and curve for notebooks."""
        if self._options is None:
            return ""
        return notebook_card(self._record, self._options.job, self.forecast, "", over=self._closed)

    # ------------------------------------------------------------------------------------------------ its state

    def state_dict(self) -> dict[str, Any]:
        """Return what a checkpoint needs to go on with this run: its progress, deadline, target and curve.

        Plain data, which ``torch.load(weights_only=True)`` reads.
        """
        training, record = self._training, self._record
        if training is None or record is None:
            return dict(self._state)
        return {
            "format": FORMAT, "batches": training.batches, "epochs": training.epochs, "record": {**record.to_entry()},
        }  # fmt: skip

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on with a run from its state, before the first batch.

        A deadline that was given as a duration counts from when the job first began, time in between included.

        Args:
            state: What :meth:`state_dict` has returned.

        Raises:
            RuntimeError: If the run has begun.
            ValueError: If it is no such state.
        """
        if self._options is None:
            return
        if self._begun:
            raise RuntimeError("load_state_dict must be called before the first batch")
        counts = [state.get("batches"), state.get("epochs")] if isinstance(state, Mapping) else [None]
        known = not state or (
            all(type(one) is int and 0 <= one <= MAX_COUNT for one in counts) and state.get("format") == FORMAT
        )
        if not known:
            raise ValueError(f"state must be what state_dict() has returned, of format {FORMAT}, got {str(state)[:80]}")
        self._state = dict(state)

    # ------------------------------------------------------------------------ as a job that a pool has launched

    @property
    def resume_path(self) -> Path | None:
        """File or folder that this training is to resume from, as it was saved; None to begin.

        A pool that has launched this script says it, by ``LIGHTNING_CORE_RESUME``.
        """
        path = os.environ.get(RESUME)
        return Path(path) if path else None

    def save_with(self, save: Callable[[Path], object]) -> None:
        """Say how this training is saved, so that a pool that has launched it can move it to another device.

        It is called between two batches, when it is time for a checkpoint, or when the job is to leave its device:
        then the process ends, with an exit code of its own, and a later one finds the checkpoint at
        :attr:`resume_path`. A script that no pool has launched is not saved by it.

        Args:
            save: Writes all that is needed to go on, :meth:`state_dict` included, into a file or a folder that it makes
                at the path that it is given.
        """
        self._save = save
        if self._training is not None:
            self._training.save = save

    def saved(self, path: Path | str) -> None:
        """Note a checkpoint that the loop has saved by itself, for a pool that has launched it to resume from.

        Args:
            path: File or folder, which is copied.

        Raises:
            ScriptReleased: If the job is to leave its device, which it can now.
        """
        if self._script is not None and self._training is not None and not self._closed:
            self._training.note_saved(Path(path))

    # ------------------------------------------------------------------------------- for loops that have hooks

    @property
    def deadline_text(self) -> str | None:
        """The deadline as it was written; None for none."""
        text = "none" if self._terms is None else self._terms.deadline_text
        return None if text == "none" else text

    def note_model(self, path: str, batch_size: int | None = None) -> None:
        """Note what is trained, before the first batch.

        Args:
            path: Class path of the model, by which earlier runs are found; empty if it is not known.
            batch_size: Samples in a batch; None if they are not known.
        """
        self._said = self._said._replace(
            model=self._said.model or path, batch_size=self._said.batch_size or batch_size
        )  # fmt: skip

    def note_schedule(self, scheduler: Any) -> None:
        """Note the learning-rate scheduler, stepped after each batch, before the first one."""
        self._said = self._said._replace(scheduler=self._said.scheduler or scheduler)

    def saves_by_itself(self) -> None:
        """Say that the loop saves when :attr:`wants_save` asks for it, and calls :meth:`saved` then."""
        if (training := self._begin()) is not None:
            training.saves_by_itself = True

    @property
    def wants_save(self) -> bool:
        """Whether a loop that saves by itself is to save now."""
        return self._training is not None and self._training.wants_save

    def note_epoch(self, batches: int) -> None:
        """Note how many batches an epoch has, in a loop that does not iterate over :meth:`batches`."""
        if (training := self._begin(batches)) is not None:
            training.note_epoch(batches)

    # ------------------------------------------------------------------------------------------- begin and end

    def _begin(self, per_epoch: int | None = None, batch_size: object = None) -> LoopTraining | None:
        """Return the training, which begins with the first call; None for none."""
        if self._begun:
            self._is_left = False
            return None if self._closed else self._training
        self._begun, self._thread = True, thread_here()
        options, terms, place = self._options, self._terms, self.place()
        assert options is not None  # otherwise it has begun
        assert terms is not None
        if options.job.on_hold is not OnHold.KEEP and place.ranks > 1:
            raise ValueError(f"on_hold={options.job.on_hold} needs a training of one process, got {place.ranks}")
        if not all_ranks_begin(place.rank, place.ranks, options.job.name, options.same_on_all_ranks()):
            self._closed = True
            return None
        if self._script is not None and not self._script.begin_training():
            log.warning("%s: a second training of a script is no part of its job, and is left alone", options.job.name)
            self._closed = True
            return None
        said = self._said
        if type(batch_size) is int and 1 <= batch_size <= MAX_COUNT:
            said = said._replace(batch_size=batch_size * self._accumulated)
        for other in [run for run in _open if run.name == self.name and run._is_named and self._is_named]:
            other._give_way(is_replaced=True)
        found = self._state.get("record") if place.rank == 0 and self._script is None else None
        self._record = record = JobRecord.for_fit(terms.job_now(), terms.deadline_text, found)
        self._training = training = LoopTraining(
            replace(options, job=record.job), record, place, self._values, self.end, said,
            int(self._state.get("batches", 0)), int(self._state.get("epochs", 0)),
            self._script,
        )  # fmt: skip
        training.save = self._save
        training.give_way = self._give_way
        _open.append(self)
        atexit.register(self._leave)  # a loop that is in no `with`
        self._end_watch = watch_cells(self._after_cell)
        training.begin(per_epoch)
        return training

    def _leave(self) -> None:
        """Leave the pool at the end of the process, with what has ended it."""
        # In IPython the last error may be that of any cell: one that used this run has ended it.
        error = getattr(sys, "last_value", None) if self._end_watch is None else None
        self.close(error if isinstance(error, BaseException) else None)

    def _after_cell(self, error: BaseException | None) -> None:
        """Note that a cell of IPython has ended: the loop cannot go on after one that used it and raised."""
        if error is not None and not self._is_left:
            self.close(error)
        self._is_left = True

    def _give_way(self, *, is_replaced: bool = False) -> None:
        """End if this loop was left, as another training of this process begins.

        It was if the cell that used it is over, or if a loop of its name replaces it. It was not while it is in a
        ``with``, in one of its batches or in another thread: then the other is a part of it, or trains beside it.
        """
        is_idle = not (self._is_entered or self._in_batch) and self._thread == thread_here()
        if is_idle and not self._closed and (self._is_left or is_replaced):
            inform(f"{self.name}: ends, because its loop was left and another training begins")
            self.close()

    def close(self, error: BaseException | None = None) -> None:
        """Release the device and leave the pool; ``with`` does it.

        Args:
            error: Exception that has ended the loop; None if there was none.
        """
        if self._closed or self._training is None:
            self._begun = self._closed = True
            return
        self._over = self._training.is_over
        self._closed = True
        atexit.unregister(self._leave)
        if self in _open:
            _open.remove(self)
        if self._end_watch is not None:
            self._end_watch()
        self._training.close(error)

    def __enter__(self) -> Self:
        self._is_entered = True
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._is_entered = False
        self.close(error)


class HasRun:
    """What a callback says of its run."""

    run: Run

    @property
    def over(self) -> bool:
        """Whether the loop is to end; before the first batch, it waits until this process may train."""
        return self.run.over

    @property
    def forecast(self) -> JobForecast | None:
        """The newest forecast of the run."""
        return self.run.forecast

    @property
    def verdict(self) -> Verdict | None:
        """The newest verdict of the run."""
        return self.run.verdict


class _Batches(Generic[T]):
    """The batches of a loader as a run yields them, with the length of the loader if it has one.

    Args:
        yields: Yields them.
        loader: The loader.
    """

    def __init__(self, yields: Callable[[Iterable[T]], Iterator[T]], loader: Iterable[T]) -> None:
        self._yields, self._loader = yields, loader

    def __iter__(self) -> Iterator[T]:
        return self._yields(self._loader)

    def __len__(self) -> int:
        return len(self._loader)  # type: ignore[arg-type]  # a TypeError is what a loader without a length raises


def track(
    job: str | None = None,
    deadline: When | None = None,
    target: Target | str | None = None,
    *,
    pool: str = "auto",
    weight: float = 1.0,
    on_miss: str = "continue",
    on_hold: str = "keep",
    on_nan: str = "continue",
    on_refused: str = "hold",
    hang: float | str | None = "5m",
    like: str = "",
    stop_when_met: bool = True,
    every: int = 10,
    max_batches: int | None = None,
    max_epochs: int | None = None,
    device: Any = None,
    model: Any = None,
    hyper_parameters: Mapping[str, Any] | None = None,
    state: Sequence[object] = (),
    lr_scheduler: Any = None,
    lr_interval: str = "step",
    accumulate_grad_batches: int = 1,
    fabric: Any = None,
) -> Run:
    """Track a training loop of one's own: report its losses, forecast its end, and obey its pool.

    The terms of the job are those of :class:`~lightning_core.callbacks.CoreCallback`, where each is described. Without
    a name, the environment says them (:mod:`lightning_core.autojoin`); if it names no job either, the run does nothing.

    Args:
        job: Name of the job, unique in its pool.
        deadline: Time limit, counted from the first batch, or the point in time by which the target should be met.
        target: When the job counts as met, such as ``"val_acc>=0.92"``, ``"loss<=0.35"``, ``"2000 batches"``.
        pool: ``"auto"``, ``"local"`` or the address of a pool.
        weight: Relative importance when not all deadlines can be met.
        on_miss: ``"continue"``, ``"stop"`` or ``"hold"`` when the deadline passes.
        on_hold: ``"keep"``, ``"offload"`` or ``"suspend"``: treatment of its GPU memory while it is held.
        on_nan: ``"continue"`` or ``"stop"`` when the losses are NaN or infinite.
        on_refused: ``"hold"``, ``"rename"`` or ``"alone"`` while its name is taken.
        hang: Time that a wait for a batch may take; a batch, in which the loop may do anything, ten times as long.
        like: Name or tag of earlier runs with a similar loss curve.
        stop_when_met: Whether the run is over when its target is met.
        every: Minimum batches per loss cell.
        max_batches: Batches after which the loop ends by itself; the forecast then knows whether they suffice.
        max_epochs: Epochs after which it does.
        device: Device on which this process trains; by default torch's current GPU if there is one.
        model: Model that is trained, by whose class earlier runs are found.
        hyper_parameters: What it is trained with, for the report.
        state: Model, optimizer and whatever else holds tensors on the GPU, which ``on_hold="offload"`` moves.
        lr_scheduler: Learning-rate scheduler of torch, whose rates to come the forecast then counts with.
        lr_interval: ``"step"`` if it is stepped after each batch, ``"epoch"`` if after each epoch.
        accumulate_grad_batches: Batches of the loader whose gradients make one step of the optimizer, which is one
            batch of the job; its loss is the mean of theirs. The last step of an epoch may have fewer.
        fabric: Fabric that trains, which then says device, ranks and loggers.

    Raises:
        ValueError: If a value is out of range, the deadline is past, or the target is missing.

    Example::

        >>> import lightning_core
        >>> with lightning_core.track("doubling", deadline="1h", target="loss<=0.01", pool="local") as run:
        ...     x = 0.0
        ...     for number in run.batches(range(1000)):
        ...         x += 0.1 * (2.0 - x)
        ...         run.log(loss=(2.0 - x) ** 2)  # doctest: +ELLIPSIS
        lightning_core: doubling: met: target met with ...
        >>> number < 999, run.over
        (True, True)
    """
    if is_disabled():
        return Run(None, None, place_here, LoopEnd(), ModelSaid())
    script, is_named = launched_script(), job is not None
    if script is not None:
        # The bundle's terms have precedence; only the scheduler knows the deadline.
        job, deadline, target, hang, every = script.job, UNKNOWN_DEADLINE, script.target, script.hang, script.every
        on_hold, on_nan, on_miss = script.on_hold, "continue", "continue"
    elif job is not None and not isinstance(job, str):
        raise TypeError(
            f"job must be the name of the job, got {type(job).__name__}; a loader is for run.batches(loader)"
        )
    elif job is None:
        given = {key: value for key, value in os.environ.items() if key.startswith(PREFIX)}
        if not given.get(f"{PREFIX}JOB"):
            if target is not None or deadline is not None:
                raise ValueError(
                    f"track needs the name of the job, or {PREFIX}JOB, since a target or deadline is given"
                )
            return Run(None, None, place_here, LoopEnd(), ModelSaid())
        told = read(given)
        job, deadline, target = told["job"], told.get("deadline", deadline), told["target"]
        pool, weight, like = told.get("pool", pool), told.get("weight", weight), told.get("like", like)
        on_miss, on_hold = told.get("on_miss", on_miss), told.get("on_hold", on_hold)
        on_nan, on_refused = told.get("on_nan", on_nan), told.get("on_refused", on_refused)
    refuse_base_60(track, deadline=deadline, hang=hang)
    if target is None:
        raise ValueError("track needs a target, such as 'loss<=0.35'")
    _check(lr_interval, max_batches=max_batches, max_epochs=max_epochs, accumulate_grad_batches=accumulate_grad_batches)
    terms = JobTerms(job, deadline, target, weight, on_miss, on_nan, like, on_hold)
    if terms.job.on_hold is not OnHold.KEEP and not state:
        raise ValueError(f"on_hold={on_hold} needs state=[model, optimizer]: what holds tensors on the GPU")
    options = Options(
        terms.job, pool, stop_when_met, every, read_on_refused(on_refused), keep_best=False, hang=parse_limit(hang),
        history=run_history(), requeue=will_be_requeued(),
    )  # fmt: skip
    if script is not None:
        options = replace(
            options, client=script.client(), device_lock=script.device_lock(), launched=True, devices=script.devices,
            incarnation=script.incarnation, cores=script.cores, give_up=script.give_up, suspender=script.suspender,
        )  # fmt: skip
    said = ModelSaid(
        "" if model is None else class_path(type(model)), None, hyper_parameters, state, lr_scheduler, lr_interval
    )
    where = (lambda: place_here(device)) if fabric is None else (lambda: place_of_fabric(fabric))
    end = LoopEnd(max_batches, max_epochs)
    return Run(terms, options, where, end, said, script, accumulate_grad_batches, is_named=is_named)


def _check(lr_interval: str, **counts: int | None) -> None:
    """Check what a loop says of itself.

    Raises:
        ValueError: If a number is not positive, or the interval is unknown.
    """
    for name, value in counts.items():
        if value is not None and (type(value) is not int or value < 1):
            raise ValueError(f"{name} must be a positive whole number, got {value!r}")
    if lr_interval not in ("step", "epoch"):
        raise ValueError(f"lr_interval must be 'step' or 'epoch', got {lr_interval!r}")


def _mean(losses: Sequence[Any]) -> Any:
    """Return the mean of the losses that are known; None if none is."""
    known = [loss for loss in losses if loss is not None]
    return sum(known) / len(known) if known else None


@contextmanager
def closing_runs() -> Iterator[None]:
    """Close, after what is done meanwhile, the runs that have begun by it in this thread, with what it raises."""
    before, error = list(_open), None
    try:
        yield
    except BaseException as raised:
        error = raised
        raise
    finally:
        for run in [run for run in _open if run not in before and run._thread == thread_here()]:
            run.close(error)


def _length_of(loader: object) -> int | None:
    """Return the number of batches of a loader; None if it has no length."""
    try:
        length = len(loader)  # type: ignore[arg-type]
    except Exception:  # it has none, or is the code of others
        return None
    return length or None
