"""Takes the whole process of a held training off its GPU through the driver, and back before its turn.

Another process does it, the suspender of the device (:mod:`lightning_core.node.suspender`). Meanwhile the process's
threads go on, and what one calls of CUDA blocks: so the watch of this thread knows beforehand, and the thread that
reports asks it. Rules

1. What the driver cannot do is told once, with its reason, and the state is offloaded instead, here and from then on.
2. A process that cannot be brought back is ended: its state could not be saved, nor even freed. A launched job goes on
   from the checkpoint that was written before it was first suspended.
3. Whatever ends the hold brings the process back first: code of others that runs then may use the GPU.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

from lightning_core.agent.reporting.hang_watch import HangWatch
from lightning_core.agent.steering.offload import Offload, RoomWait
from lightning_core.core.events import ExitCause
from lightning_core.node.cuda_driver import CannotSuspendError, CudaDriver, ProcessLostError
from lightning_core.node.suspender_client import Condition, Move, SuspenderClient, Whereabouts
from lightning_core.view.console_lines import logger

log = logger(__name__)

# Seconds that the driver may take to move all memory of a process.
MOVE_TIMEOUT = 300.0
# Seconds that the suspender may take to answer that it is there, or whether it can.
ANSWER_TIMEOUT = 60.0
# Seconds between two looks whether there is room for a process that has to come back.
LOOK_INTERVAL = 0.1


class Suspension:
    """The process of one training, which leaves its GPU while the job is held.

    Args:
        job: Name of the job, for log messages.
        offload: What moves the state instead where the driver cannot.
        gpu: UUID of the GPU.
        where: Returns the path of the suspender's socket; None while it is not known.
        hangs: Watch of the training thread, which is told.
        lose: Function that ends this process, given why and the cause.
        clock: Monotonic clock, in seconds.
        open_driver: Returns the driver, for this process to bring itself back.
    """

    def __init__(
        self,
        job: str,
        offload: Offload,
        gpu: str,
        where: Callable[[], Path | None],
        hangs: HangWatch,
        lose: Callable[[str, ExitCause], object],
        clock: Callable[[], float] = time.monotonic,
        open_driver: Callable[[], CudaDriver] = CudaDriver,
    ) -> None:
        self._job = job
        self._offload = offload
        self._gpu = gpu
        self._where = where
        self._hangs = hangs
        self._lose = lose
        self._room = RoomWait(job, clock)
        self._open_driver = open_driver
        self._client: SuspenderClient | None = None
        self._checked = False
        self.why_refused = ""
        """Why the process is not suspended; empty while it may be."""
        self._size = 0

    @property
    def is_out(self) -> bool:
        """Whether the process, or some of its state, has left the device."""
        return self._hangs.suspended or self._offload.is_out

    def frees(self) -> int:
        """Return the bytes that leave the device when the job is held; may be called from another thread."""
        return self._offload.frees() if self.why_refused else sys.maxsize

    def check(self) -> None:
        """Ask once whether the process can be suspended, and say why not."""
        path = None if self._checked else self._where()
        if path is None:
            return
        self._checked = True
        try:
            self._client = SuspenderClient(path, self._gpu)
            answer = self._client.ask(Move.TRY, ANSWER_TIMEOUT)
        except OSError as error:
            self._refuse(f"its device's suspender does not answer: {error}")
        else:
            self._take(answer)

    def move_out(self) -> None:
        """Suspend the process, or say that it still is; where that cannot be done, move the state."""
        if self._hangs.suspended:
            if self._client is not None:
                self._take(self._ask(self._client, Move.STILL))
            return
        self.check()
        if self._client is None and not self.why_refused:
            self._refuse("no pool's device arbiter is known for its GPU")
        if self._client is None or self.why_refused:
            self._offload.move_out()
            return
        size = self._offload.settle()
        self._hangs.suspended = True
        self._take(self._ask(self._client, Move.OUT, size))
        if not self._hangs.suspended:
            self._offload.move_out()

    def move_back(self) -> bool:
        """Bring the process back, or move the state; return whether the device has room for it."""
        if not self._hangs.suspended:
            return self._offload.move_back()
        answer = self._bring_back_alone() if self._client is None else self._ask(self._client, Move.BACK)
        self._take(answer)
        if self._hangs.suspended:
            if self._room.is_over():
                self._end(f"there was no room to bring it back: {answer.why}", ExitCause.OUT_OF_MEMORY)
            return False
        self._room.end()
        return True

    def read_on_host(self) -> None:
        """Make the state one that can be read: a suspended process comes back, an offloaded one reads on the host."""
        while self._hangs.suspended and not self.move_back():
            time.sleep(LOOK_INTERVAL)
        self._offload.read_on_host()

    def _take(self, answer: Whereabouts) -> None:
        """Take in where the process is."""
        if answer.condition is Condition.LOST:
            self._end(answer.why, ExitCause.LOST)
        self._hangs.suspended = answer.condition is Condition.SUSPENDED
        self._size = answer.size
        if answer.why and not self._hangs.suspended:
            self._refuse(answer.why)

    def _ask(self, client: SuspenderClient, what: Move, size: int = 0) -> Whereabouts:
        """Ask the suspender; if it is gone, find out where this process is."""
        try:
            return client.ask(what, ANSWER_TIMEOUT if what is Move.STILL else MOVE_TIMEOUT, size)
        except TimeoutError:
            if what is Move.STILL:  # it moves another process
                return Whereabouts(Condition.SUSPENDED, "", self._size)
            return Whereabouts(Condition.LOST, f"the driver has not moved it for {MOVE_TIMEOUT:.0f} s")
        except OSError as error:
            log.warning("%s: lost the suspender of its GPU, and brings itself back when it may: %s", self._job, error)
            client.close()
            self._client = None
        if what is Move.STILL:
            return Whereabouts(Condition.SUSPENDED, "", self._size)
        return self._bring_back_alone()

    def _bring_back_alone(self) -> Whereabouts:
        """Bring this process back without a suspender, if the device has room."""
        try:
            driver = self._open_driver()
            if driver.free(self._gpu) < self._size:
                return Whereabouts(Condition.SUSPENDED, "its GPU is full", self._size)
            driver.bring_back(os.getpid())
        except (CannotSuspendError, ProcessLostError) as error:
            return Whereabouts(Condition.LOST, str(error))
        return Whereabouts(Condition.RUNNING, "the suspender of its GPU is gone")

    def _refuse(self, why: str) -> None:
        if not self.why_refused:
            self.why_refused = why
            log.warning("%s: on_hold=suspend cannot be done, on_hold=offload is: %s", self._job, why)

    def _end(self, why: str, cause: ExitCause) -> NoReturn:
        story = f"its process was suspended and cannot be brought back onto its GPU: {why}"
        self._lose(story, cause)
        self._hangs.suspended = False
        raise ProcessLostError(story)


# What moves the state of a held training off its device.
Mover = Offload | Suspension
