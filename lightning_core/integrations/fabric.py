"""A loop on Lightning Fabric: a callback for the hooks that it calls, by the names that Lightning's own loops use.

Fabric itself calls ``on_after_setup`` and ``on_after_optimizer_step``. All other hooks are called by the loop, with
``fabric.call``. So the callback takes what it gets: with the two it reports progress, holds and takes turns; with
``fabric.call("on_train_batch_end", {"loss": loss})`` it has losses to forecast from.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any, NoReturn

from lightning_core.agent.reporting.joining import class_path
from lightning_core.core.durations import When
from lightning_core.core.targets import Target
from lightning_core.integrations.loop_training import place_here, place_of_fabric
from lightning_core.integrations.plain import HasRun, track


class CoreFabricCallback(HasRun):
    """Joins a Fabric to a scheduler, as :func:`lightning_core.track` joins a plain loop.

    A batch is a step of the optimizer, gradient accumulation included. Where the loop calls ``on_train_batch_end``, the
    losses that it is given since the step before are averaged; where it never does, each step is a batch without a
    loss.

    Args:
        job: Name of the job; None to read the terms from the environment.
        deadline: Deadline of the job.
        target: Target of the job.
        terms: Other arguments of :func:`~lightning_core.track`.

    Raises:
        ValueError: If a value is out of range, the deadline is past, or the target is missing.

    Example::

        >>> from lightning.fabric import Fabric
        >>> callback = CoreFabricCallback("resnet", deadline="2h", target="val_acc>=0.92", pool="local")
        >>> fabric = Fabric(accelerator="cpu", callbacks=[callback])
        >>> callback.over
        False
        >>> callback.run.close()  # doctest: +ELLIPSIS
        lightning_core: resnet: ...
    """

    def __init__(
        self, job: str | None = None, deadline: When | None = None, target: Target | str | None = None, **terms: Any
    ) -> None:
        self.run = track(job, deadline, target, **terms)
        """The run, with its forecast, verdict and state."""
        self._fabric: Any = None
        self._chosen = terms.get("device")
        self.run.place = lambda: place_here(self._chosen) if self._fabric is None else place_of_fabric(self._fabric)
        self._stepped = 0
        self._losses: list[Any] = []
        self._outputs: dict[str, Any] = {}
        self._ends_batches = False
        self.state_key = type(self).__qualname__  # a Trainer reads it before it is refused

    def setup(self, *_: Any, **__: Any) -> NoReturn:
        """Refuse a Trainer, which calls this hook.

        Raises:
            TypeError: Always.
        """
        raise TypeError("CoreFabricCallback is for a Fabric; a Trainer takes lightning_core.callbacks.CoreCallback")

    def on_exception(self, *_: Any) -> None:
        """Let a Trainer end, which has been refused."""

    def teardown(self, *_: Any, **__: Any) -> None:
        """Let a Trainer end, which has been refused."""

    # -------------------------------------------------------------------------------------- called by Fabric itself

    def on_after_setup(self, fabric: Any, module: Any) -> None:
        """Note the Fabric and the model that it trains."""
        self._fabric = fabric
        self.run.note_model(class_path(type(getattr(module, "module", module))))

    def on_after_optimizer_step(self, **_: Any) -> None:
        """Count a step; of a loop that does not say when a batch ends, the step before is a batch."""
        if self._stepped and not self._ends_batches:
            self._end_batch()
        self._stepped += 1

    # ----------------------------------------------------------------------------------------- called by the loop

    def on_train_start(self, *_: Any) -> None:
        """Join, and wait until this process may train."""
        self.run.begin()

    def on_train_epoch_start(self, *_: Any) -> None:
        """Wait until this process may train."""
        self.run.begin()

    def on_train_batch_end(self, outputs: Any = None, *_: Any) -> None:
        """Report a batch, unless it only accumulates gradients.

        Args:
            outputs: The loss, or a mapping with it as ``loss`` and with other values of the batch.
        """
        self._ends_batches = True
        values = outputs if isinstance(outputs, Mapping) else {"loss": outputs}
        if values.get("loss") is not None:
            self._losses.append(values["loss"])
        self._outputs.update({name: value for name, value in values.items() if name != "loss"})
        if self._stepped or self._fabric is None:
            self._end_batch()

    def on_validation_batch_start(self, *_: Any) -> None:
        """Wait until this process may do a batch of validation."""
        self.run.begin_validation_batch()

    def on_validation_batch_end(self, *_: Any) -> None:
        """Report a batch of validation."""
        self.run.end_validation_batch()

    def on_validation_epoch_end(self, metrics: Mapping[str, Any] | None = None, *_: Any) -> None:
        """Read the values of a validation.

        Args:
            metrics: Values by name.
        """
        self.run.evaluate(**(metrics or {}))

    on_validation_end = on_validation_epoch_end

    def on_train_end(self, *_: Any) -> None:
        """Release the device and leave the pool."""
        if self._stepped and not self._ends_batches:
            self._end_batch()
        self.run.close()

    def _end_batch(self) -> None:
        losses, self._losses = self._losses, []
        outputs, self._outputs, self._stepped = self._outputs, {}, 0
        loss = losses[0] if len(losses) == 1 else sum(one.detach() for one in losses) / len(losses) if losses else None
        self.run.step(loss, **outputs)


# Whenever Fabric calls a hook it asks for its signature, which takes three times as long where it has to be worked out.
vars(CoreFabricCallback)["on_train_batch_end"].__signature__ = inspect.signature(CoreFabricCallback.on_train_batch_end)
