"""The Trainer of Hugging Face's ``transformers``, and those of packages that build on it, such as TRL.

Such a callback is told of each optimizer step, and of a loss only when the Trainer logs one. It cannot log in the
Trainer's loggers, and it is not told of an exception: the job ends with the process, or with the next training.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from transformers import TrainerCallback
from transformers.trainer_callback import ExportableState

from lightning_core.agent.reporting.joining import class_path
from lightning_core.core.durations import When
from lightning_core.core.targets import STEP_LOSS, Target
from lightning_core.integrations.loop_training import LoopEnd, Place
from lightning_core.integrations.plain import FORMAT, HasRun, track
from lightning_core.view.console_lines import logger

log = logger(__name__)

# Values of the loss that a forecast needs at least.
ENOUGH_LOSSES = 10


class CoreTrainerCallback(HasRun, TrainerCallback, ExportableState):  # type: ignore[misc]
    """Joins a ``transformers.Trainer`` to a scheduler, as :func:`lightning_core.track` joins a plain loop.

    A batch is a step of the optimizer, gradient accumulation included. A target may be about ``loss``, which is that of
    each ``logging_steps``, about any other value that the Trainer logs, or about one of an evaluation, such as
    ``eval_accuracy>=0.9``.

    Args:
        job: Name of the job; None to read the terms from the environment.
        deadline: Deadline of the job.
        target: Target of the job.
        terms: Other arguments of :func:`~lightning_core.track`.

    Raises:
        ValueError: If a value is out of range, the deadline is past, or the target is missing.

    .. note::
        Its checkpoints carry the job's progress, deadline and curve in ``trainer_state.json``.
    """

    def __init__(
        self, job: str | None = None, deadline: When | None = None, target: Target | str | None = None, **terms: Any
    ) -> None:
        self.run = track(job, deadline, target, **terms)
        """The run of the newest training, with its forecast, verdict and state."""
        self._arguments = (job, deadline, target), terms
        self._evaluating = self._awaits_loss = False

    # ------------------------------------------------------------------------------------------ begin and end

    def on_train_begin(
        self, args: Any, state: Any, control: Any, model: Any = None, lr_scheduler: Any = None, **kwargs: Any
    ) -> None:
        """Join, and wait until this process may train."""
        if self.run.has_begun:  # the training before has ended, by an exception if not well
            self.run.close()
            given, terms = self._arguments
            self.run = track(*given, **terms)
        run = self.run
        run.place = lambda: Place(args.device, args.process_index, args.world_size)
        by_epochs = args.max_steps is None or args.max_steps <= 0
        name = f"num_train_epochs={args.num_train_epochs:g}" if by_epochs else f"max_steps={args.max_steps}"
        if state.max_steps:
            run.end = LoopEnd(state.max_steps, name=name)
        path = "" if model is None else class_path(type(model))
        run.note_model(path, args.train_batch_size * args.gradient_accumulation_steps)
        if hasattr(lr_scheduler, "optimizer"):
            run.note_schedule(lr_scheduler)
        if state.global_step:
            found = _state_in(state, type(self).__name__) or {"format": FORMAT, "record": None}
            run.load_state_dict({**found, "batches": state.global_step, "epochs": int(state.epoch or 0)})
        self._check_losses(state)
        run.saves_by_itself()
        self._stop_if_over(control)

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Release the device and leave the pool."""
        if self._awaits_loss:
            self._end_step(control)
        self.run.close()

    def _check_losses(self, state: Any) -> None:
        """Warn if the loss is logged too seldom to forecast from."""
        target = self.run.target
        if target is None or target.observed != STEP_LOSS or not target.observes or not state.max_steps:
            return
        every = state.logging_steps
        if every * ENOUGH_LOSSES > state.max_steps:
            log.warning("%s: its loss is logged every %s of %s steps: a forecast needs some %s values; set "
                        "logging_steps=%s or less", self.run.name, every, state.max_steps, ENOUGH_LOSSES,
                        max(state.max_steps // (2 * ENOUGH_LOSSES), 1))  # fmt: skip

    # ------------------------------------------------------------------------------------------------ each step

    def on_epoch_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Note how many steps an epoch has."""
        if state.max_steps and state.num_train_epochs:
            self.run.note_epoch(max(round(state.max_steps / state.num_train_epochs), 1))

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Report a step; one whose loss is to be logged is reported with that loss."""
        if self._awaits_loss:  # it was not logged after all
            self._end_step(control)
        self._awaits_loss = bool(control.should_log)
        if not self._awaits_loss:
            self._end_step(control)

    def on_log(self, args: Any, state: Any, control: Any, logs: Mapping[str, Any] | None = None, **kwargs: Any) -> None:
        """Read what the Trainer logs; the loss is that of the steps since it was logged before."""
        values = {name: value for name, value in (logs or {}).items() if isinstance(value, int | float)}
        loss = values.pop("loss", None)
        if not self._evaluating:
            self.run.log(loss, **values)
        if self._awaits_loss and loss is not None:
            self._end_step(control)

    def _end_step(self, control: Any) -> None:
        self._awaits_loss = False
        self.run.step()
        self._stop_if_over(control)

    def _stop_if_over(self, control: Any) -> None:
        if self.run.wants_save:
            control.should_save = True
        if self.run.over:
            control.should_training_stop = True

    def on_save(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Give a checkpoint that a pool has asked for to it, and leave if the job is to.

        Raises:
            SystemExit: If it leaves.
        """
        if self.run.wants_save:
            self.run.saved(Path(args.output_dir, f"checkpoint-{state.global_step}"))

    # ----------------------------------------------------------------------------------------------- evaluations

    def on_prediction_step(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Wait until this process may do the next batch of an evaluation."""
        if self.run.has_begun:
            self._evaluating = True
            self.run.end_validation_batch()
            self.run.begin_validation_batch()

    def on_evaluate(
        self, args: Any, state: Any, control: Any, metrics: Mapping[str, Any] | None = None, **kwargs: Any
    ) -> None:
        """Read the values of an evaluation."""
        self._evaluating = False
        if self.run.has_begun:
            numbers = {name: value for name, value in (metrics or {}).items() if isinstance(value, int | float)}
            self.run.evaluate(**numbers)
            self._stop_if_over(control)

    # ------------------------------------------------------------------------------------------------- its state

    def state(self) -> dict[str, Any]:
        """Return what ``trainer_state.json`` holds of the job; ``transformers`` may make a callback of it."""
        (job, _, target), terms = self._arguments
        plain = {name: value for name, value in terms.items() if isinstance(value, str | int | float | bool)}
        return {
            "args": {"job": job, "deadline": self.run.deadline_text, "target": None if target is None else str(target),
                     **plain},
            "attributes": {"found": self.run.state_dict()},
        }  # fmt: skip


def _state_in(state: Any, name: str) -> Mapping[str, Any] | None:
    """Return the state of the run in that of a Trainer that was resumed; None if there is none."""
    entry = (state.stateful_callbacks or {}).get(name)
    entry = entry[0] if isinstance(entry, list) and entry else entry
    attributes = entry.get("attributes") if isinstance(entry, Mapping) else None
    found = attributes.get("found") if isinstance(attributes, Mapping) else None
    return found if isinstance(found, Mapping) and found else None
