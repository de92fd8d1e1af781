"""The signal that a Slurm job is nearly over, in a training of several ranks: all of them save after the same batch.

Lightning saves in the handler of the signal, on each rank wherever it is. That is a collective, and another rank may be
in another one: they wait for each other until the job is killed. So the signal is noted, the first rank tells the
others with their next agreement, and all of them call Lightning's handler then: it saves, and asks Slurm to requeue.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable
from typing import Any

import lightning.pytorch as pl
from lightning.fabric.plugins.environments.slurm import SLURMEnvironment


class RequeueTogether:
    """Keeps Lightning's handler of the signal until all ranks can call it.

    Args:
        trainer: Trainer of several ranks, whose handlers are in place.
    """

    def __init__(self, trainer: pl.Trainer) -> None:
        self.came = False
        """Whether the signal has come to this rank."""
        self._number: signal.Signals | None = None
        self._handler: Callable[..., Any] | None = None
        environment = trainer._accelerator_connector.cluster_environment
        if not (isinstance(environment, SLURMEnvironment) and environment.auto_requeue):
            return
        number = environment.requeue_signal or signal.SIGUSR1
        handler = signal.getsignal(number)
        if callable(handler) and threading.current_thread() is threading.main_thread():
            self._number, self._handler = number, handler
            signal.signal(number, self._note)

    def save_and_requeue(self) -> None:
        """Call Lightning's handler; on all ranks after the same batch."""
        self.came = False
        if self._handler is not None and self._number is not None:
            self._handler(self._number, None)

    def close(self) -> None:
        """Put Lightning's handler back, unless another one has taken its place."""
        if self._number is not None and signal.getsignal(self._number) == self._note:
            signal.signal(self._number, self._handler)
        self._number = None

    def _note(self, *_: Any) -> None:
        self.came = True
