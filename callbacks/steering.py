"""Obeying: turns, holding, stopping, leaving. Called from the training thread, before and after batches."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from lightning_core.core.answers import Directive, End, Grant, Verdict
from lightning_core.core.protocols import DeviceLock
from lightning_core.view.console_lines import inform, logger

from .busy_timer import Pace
from .joining import FORSAKEN
from .mailbox import Mailbox
from .ranks import Action, Also, Ranks
from .throttle import Limit

log = logger(__name__)

# How long a held or waiting training thread sleeps before it looks around by itself, seconds.
LOOK = 1.0
# How long a launched job waits for the scheduler's first word before it trains without one, seconds.
FIRST_WORD = 10.0
# ... and a script for the first answer of a pool that is there, which takes some milliseconds: else it would begin at
# full speed on a device that others share.
FIRST_ANSWER = 2.0
# How long a launched job trains on without a word of its scheduler, which may have given it up and begun it elsewhere,
# seconds.
LEASE = 60.0
# What weighs a turn before the first word, and of a job on its way to where it can leave.
MIN_SHARE = 0.1


class JobOver(Exception):
    """Leaves ``Trainer.fit`` of a launched job that the scheduler has ended.

    Args:
        job: its name.
        end: the directive that said so; None on any rank but the first.
    """

    def __init__(self, job: str, end: End | None = None) -> None:
        super().__init__(f"{job}: ended" if end is None else f"{end.job}: {end.verdict}: {end.reason}")
        self.end = end


class Fenced(JobOver):
    """Leaves ``Trainer.fit`` of a launched job that was begun anew elsewhere: what this one saves counts no more."""


class Released(Exception):
    """Leaves ``Trainer.fit`` of a launched job that was saved, so that it can come back later."""


class Steering:
    """One process's obedience during one fit.

    Args:
        job: its name.
        box: where directives arrive; None on any rank but the first.
        pace: told when turns begin and end.
        ranks: how the processes of one training agree; None if there is one.
        device_lock: the device's turnstile; None: looked up when a grant names a device.
        launched: whether a launcher runs this Trainer: it leaves when told to.
        devices: that it trains on, of a launched job.
        stop_when_met: whether to stop when the target is met.
        told_to_end: whether somebody wants the process to end: Lightning sees to it after a batch, so it must not hold.
        cores: of its device, if that is a CPU.
    """

    def __init__(
        self, job: str, box: Mailbox | None, pace: Pace, ranks: Ranks | None, device_lock: DeviceLock | None,
        launched: bool, devices: tuple[int, ...], stop_when_met: bool, told_to_end: Callable[[], bool], cores: int = 1,
    ) -> None:  # fmt: skip
        self.leaving = False
        """Whether to save and leave as soon as that is exact."""
        self.saving = False
        """Whether to save as soon as that is exact."""
        self.keeping = False
        """Whether all processes keep the model, as the best so far, after this batch."""
        self.stopping = False
        """Whether the training is to stop, its target met."""
        self._job = job
        self._box = box
        self._pace = pace
        self._ranks = ranks
        self._device_lock = device_lock if ranks is None else None
        self._own_device_lock: tuple[int, DeviceLock] | None = None
        self._cores: set[int] | None = None
        self._launched = launched
        self._devices = sorted(devices)
        self._cores_each = cores
        self._limit = Limit(job, pace.on_host)
        self._stop_when_met = stop_when_met
        self._told_to_end = told_to_end
        self._obeyed: Directive | None = None
        self._in_turn = False
        self._share = MIN_SHARE
        self._waits_for_word = False

    # ------------------------------------------------------------------------------------------------ called by hooks

    def first_word(self) -> None:
        """Waits for it, and holds until this process may train."""
        if self._box is not None and self._launched:
            self._box.wait(None, FIRST_WORD)
        elif self._box is not None:
            self._box.wait_for_answer(FIRST_ANSWER)
        self.obey(also=Also.NOTHING)

    def enter(self) -> None:
        """Before a batch: does what the scheduler wants, lets others in if the turn is spent, waits for the turn.

        The turn is given up here, with the batch already loaded, and not when the last one ended: what lies between
        two batches belongs to the turn of whoever does it.
        """
        if self._ranks is None and self._has_news():
            self.obey(also=Also.NOTHING)
        while (ahead := self._limit.ahead()) > 0:
            self._end_turn(again=False)
            self._pause(ahead)
        device_lock = self._current_device_lock()
        if device_lock is not None and self._in_turn and device_lock.expired():
            self._end_turn(again=True)
        if not self._in_turn:
            while device_lock is not None and not device_lock.acquire(self._share, LOOK):
                if self._has_news():
                    self.obey(also=Also.NOTHING)
                    device_lock = self._current_device_lock()
                elif self._must_go_on():
                    break
            self._in_turn = True
            self._pace.begin()
            self._limit.begin()

    def after_batch(self, also: Also) -> None:
        """After a batch: the newest directive, if there is one; with several processes, when they are to agree."""
        if self._ranks is not None:
            if self._ranks.due():
                self.obey(also)
            return
        self.saving = Also.SAVE in also
        if self._has_news():
            self.obey(also)

    def obey(self, also: Also) -> None:
        """Does what the newest directive says; returns when this process may train, is to stop, or to leave.

        Raises:
            JobOver: if a launched job is over, its target unmet.
            Fenced: if a launched job goes on elsewhere.
        """
        while (word := self._decide(also)) is Action.HOLD:
            self._end_turn(again=False)
            if self._box is not None:
                self._box.parked_at = self._obeyed
                self._box.wait(self._obeyed, LOOK)
        if self._box is not None:
            self._box.parked_at = None  # it may have held without a word that says so
        self.leaving = word is Action.LEAVE
        if word is Action.STOP:
            self.stopping = True
        elif word is Action.OVER:
            self._end_turn(again=False)
            raise JobOver(self._job, self._obeyed if isinstance(self._obeyed, End) else None)
        elif word is Action.FENCED:
            self._end_turn(again=False)
            raise Fenced(self._job, self._obeyed if isinstance(self._obeyed, End) else None)

    def close(self) -> float:
        """Gives everything back; busy seconds in all."""
        try:
            self._end_turn(again=False)
        finally:
            self._part_from_turns()
            self._limit.close()
        return self._pace.busy()

    # ------------------------------------------------------------------------------------------------ how

    def _decide(self, also: Also) -> Action:
        word = Action.GO
        if self._box is not None:
            directive, known = self._box.directive, self._obeyed
            self._obeyed = directive
            word = self._word(directive)
            if word in (Action.GO, Action.LEAVE) and (self._box.refused or self._must_wait_for_word()):
                word = Action.HOLD
            if word is Action.HOLD and self._must_go_on():
                word = Action.GO
            if directive is not known:
                self._take_up(directive)
        if self._ranks is not None:
            word, agreed = self._ranks.agree(word, also)
            self.saving = self.saving or bool(agreed & Also.SAVE)
            self.keeping = bool(agreed & Also.KEEP)
        return word

    def _has_news(self) -> bool:
        box = self._box
        return box is not None and (box.directive is not self._obeyed or bool(box.refused) or self._has_lapsed(box))

    def _has_lapsed(self, box: Mailbox) -> bool:
        return self._launched and box.unheard_for() > LEASE

    def _must_wait_for_word(self) -> bool:
        """A launched job does not train on for ever by the last word that it heard."""
        before, self._waits_for_word = self._waits_for_word, self._box is not None and self._has_lapsed(self._box)
        if self._waits_for_word and not before:
            log.warning("%s: no word of its scheduler for %.0f s: it holds until there is one", self._job, LEASE)
        return self._waits_for_word

    def _word(self, directive: Directive | None) -> Action:
        match directive:
            case End(version=0) if self._launched:
                return Action.FENCED
            case End(verdict=Verdict.MET) if self._launched or self._stop_when_met:
                return Action.STOP
            case End() if self._launched:
                return Action.OVER
            case End(reason=reason) if reason.code.startswith("diverged"):
                return Action.STOP  # as its user wants it, who said what is to be done about losses that are none
            case Grant(devices=devices) if self._launched and sorted(devices) != self._devices:
                return Action.LEAVE
            case Grant(share=0.0):
                return Action.HOLD
        return Action.GO

    def _take_up(self, directive: Directive | None) -> None:
        match directive:
            case Grant():
                self._share = directive.share or self._share
                if self._ranks is None:
                    self._set_limit(directive.share if directive.capped and directive.share else None)
                if not self._launched and directive.devices and self._ranks is None:
                    self._go_to(directive.devices[0])
            case End(verdict=Verdict.MET):
                inform(f"{self._job}: {directive.reason}")
            case End() if not self._launched:
                log.warning("%s: %s: %s", self._job, directive.verdict, directive.reason)
                self._end_turn(again=False)
                self._part_from_turns()  # nobody grants it anything any more; the script goes on

    def _current_device_lock(self) -> DeviceLock | None:
        """None where it needs none: the kernel sees to its part."""
        return None if self._limit.by_kernel else self._device_lock

    def _set_limit(self, part: float | None) -> None:
        before = self._limit.by_kernel
        self._limit.set(part, self._cores_of_device())
        if self._limit.by_kernel != before:
            self._end_turn(again=False)  # it takes none any more, or needs one again
            if not before and self._device_lock is not None:
                self._device_lock.bind()

    def _cores_of_device(self) -> int:
        """A script learns it from the pool that it has joined."""
        return self._cores_each if self._launched or self._box is None else self._box.cores

    def _pause(self, seconds: float) -> None:
        """Stands still, unless there is news."""
        assert self._box is not None  # what limits it arrived there
        self._box.wait(self._obeyed, seconds)
        if self._has_news():
            self.obey(also=Also.NOTHING)

    def _go_to(self, device: int) -> None:
        """Takes turns where the pool wants a script to: on the device that it found it on."""
        assert self._box is not None  # grants arrive there
        known, paths = self._own_device_lock, self._box.arbiters
        if (known is None or known[0] != device) and device < len(paths) and paths[device]:
            from lightning_core.node.arbiter_client import ArbiterClient
            from lightning_core.node.device_cores import cores_of

            self._end_turn(again=False)
            self._part_from_turns()
            if self._pace.on_host:
                self._cores = os.sched_getaffinity(0)
            bound = cores_of(device, self._cores_of_device(), Path(paths[device])) if self._pace.on_host else None
            self._device_lock = ArbiterClient(Path(paths[device]), cores=bound)
            self._own_device_lock = device, self._device_lock

    def _part_from_turns(self) -> None:
        if self._own_device_lock is not None:
            self._own_device_lock[1].close()
            self._own_device_lock = self._device_lock = None
        if self._cores is not None:
            os.sched_setaffinity(0, self._cores)
            self._cores = None

    def _must_go_on(self) -> bool:
        forsaken = not self._launched and self._box is not None and self._box.silent_for() > FORSAKEN
        return forsaken or self._told_to_end()

    def _end_turn(self, *, again: bool) -> None:
        if self._in_turn:
            self._in_turn = False
            self._pace.end()
            self._limit.end()
        if self._device_lock is not None:
            self._device_lock.release(again=again, share=self._share)
