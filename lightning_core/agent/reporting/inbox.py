"""The newest directive for a training, which its training thread reads and waits for."""

from __future__ import annotations

import threading
import time

from lightning_core.core.answers import Directive, End, Grant


class Inbox:
    """Holds the newest directive of one job.

    The threads that talk to the scheduler store directives; the training thread reads the attributes without a lock.

    Attributes:
        directive: Newest directive; None before the first.
        parked_at: Directive under which the training thread waits for another one, so that nothing moves.
        renumbered: Whether the pool was joined again and may count its versions anew.
    """

    def __init__(self) -> None:
        self.directive: Directive | None = None
        self.parked_at: Directive | None = None
        self.renumbered = False
        self._changed = threading.Condition()
        self._answered = False
        self._heard_at = time.monotonic()

    @property
    def parked(self) -> bool:
        """Whether the training thread waits for a directive other than the newest."""
        # Not a flag that the training thread resets: it may not have run since the news that wakes it.
        return self.parked_at is not None and self.parked_at is self.directive

    @property
    def version(self) -> int:
        """Version of the newest directive; -1 if any directive of the pool is news."""
        return -1 if self.directive is None or self.renumbered else self.directive.version

    def take(self, directive: Directive | None) -> None:
        """Store what the scheduler answered, unless it is outdated; None if there was nothing new."""
        self._heard_at = time.monotonic()
        if directive is not None:
            with self._changed:
                known = self.directive
                if not self.renumbered and isinstance(directive, Grant) and isinstance(known, End):
                    return  # meant for another incarnation
                if not self.renumbered and isinstance(known, Grant) and 0 < directive.version < known.version:
                    return  # the other thread has heard a newer one
                self.directive = directive
                self._changed.notify_all()

    def set_answered(self) -> None:
        """Wake the thread that waits for the first answer, which has come or will not come."""
        with self._changed:
            self._answered = True
            self._changed.notify_all()

    def wait(self, known: Directive | None, timeout: float) -> None:
        """Return when there is a directive other than ``known``, or after ``timeout`` seconds."""
        with self._changed:
            if self.directive is known:
                self._changed.wait(timeout)

    def wait_for_answer(self, timeout: float) -> None:
        """Return when the first report was answered or cannot be, or after ``timeout`` seconds."""
        with self._changed:
            self._changed.wait_for(lambda: self._answered, timeout)

    def unheard_for(self) -> float:
        """Return the seconds since the scheduler's last answer.

        They also pass while the scheduler hangs, or while this process is stopped.
        """
        return time.monotonic() - self._heard_at
