"""Carries out the scheduler's directives from the training thread, before and after batches."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from lightning_core.agent.reporting.hang_watch import HangWatch, Phase
from lightning_core.agent.reporting.joining import POOL_TIMEOUT
from lightning_core.agent.reporting.mailbox import Mailbox
from lightning_core.agent.steering.busy_timer import BusyTimer
from lightning_core.agent.steering.fit_signals import JobEnded, JobFenced
from lightning_core.agent.steering.ranks import NOTHING, Action, Ranks, SideAction, SignalsDeferred
from lightning_core.agent.steering.throttle import Throttle
from lightning_core.core.answers import Directive, End, Grant, Verdict
from lightning_core.core.protocols import DeviceLock
from lightning_core.core.targets import Target
from lightning_core.view.console_lines import inform, logger

if TYPE_CHECKING:
    from lightning_core.agent.steering.suspension import Mover

log = logger(__name__)

# Maximum seconds that a held or waiting training thread sleeps before it checks its state.
MAX_WAIT = 1.0
# Seconds between two looks whether the device has room for the state that is to move back.
ROOM_INTERVAL = 0.1
# Seconds that a launched job waits for the first directive before it trains without one.
FIRST_DIRECTIVE_TIMEOUT = 10.0
# Seconds that a script waits for the first answer of its pool, which normally takes milliseconds. Without it the script
# would start at full speed on a device that others share.
FIRST_ANSWER_TIMEOUT = 2.0
# Seconds that a launched job trains without hearing from its scheduler. After that the scheduler may have given the job
# up and started another incarnation.
LEASE = 60.0
# Share that weighs a quantum before the first directive, and while a job is about to leave.
MIN_SHARE = 0.1
# Share that weighs a quantum of a script whose job is over.
LAST_SHARE = 1e-3


class Steering:
    """Makes one process obey the scheduler during one fit.

    Args:
        job: Name of the job.
        mailbox: Where directives arrive; None on all ranks but the first.
        hangs: Watch of this thread.
        timer: Busy timer, told when quanta begin and end.
        ranks: Agreement of the processes of one training; None if there is only one.
        device_lock: Lock of the shared device. None: created when a grant names a device.
        launched: Whether the job was launched by a pool, and leaves when told to.
        devices: Devices that a launched job trains on.
        stop_when_met: Whether to stop when the target is met.
        must_not_hold: Whether the process has to train on: it was asked to end, and Lightning does so after a batch.
        cores: Cores of the device if it is a CPU.
        offload: Mover of the state off the device while the job is held; None if it stays there.
        aim: Called with a target that the job was given while it trains.
        host: Returns the steering of another training of this process, within whose grant this one trains, while it
            does; None if it never does.
    """

    def __init__(
        self, job: str, mailbox: Mailbox | None, hangs: HangWatch, timer: BusyTimer, ranks: Ranks | None,
        device_lock: DeviceLock | None, launched: bool, devices: tuple[int, ...], stop_when_met: bool,
        must_not_hold: Callable[[], bool], cores: int = 1, offload: Mover | None = None,
        host: Callable[[], Steering | None] | None = None, aim: Callable[[Target], None] | None = None,
    ) -> None:  # fmt: skip
        self.leaving = False
        """Whether to save and leave as soon as resuming would be exact."""
        self.saving = False
        """Whether to save as soon as resuming would be exact."""
        self.keeping = False
        """Whether all ranks save the model as the best so far after this batch."""
        self.requeueing = False
        """Whether all ranks save after this batch, and ask for a new allocation."""
        self.wants_stop = False
        """Whether this process has met the target, and stops by it."""
        self.stopping = False
        """Whether to stop the Trainer because the target is met."""
        self.holding = False
        """Whether to hold, and offload, as soon as nothing of this batch is left to do."""
        self._job = job
        self._mailbox = mailbox
        self._hangs = hangs
        self._timer = timer
        self._ranks = ranks
        self._device_lock = device_lock if ranks is None else None
        self._own_device_lock: tuple[int, DeviceLock] | None = None
        self._affinity: set[int] | None = None
        self._launched = launched
        self._devices = sorted(devices)
        self._cores = cores
        self._throttle = Throttle(job, timer.on_host)
        self._stop_when_met = stop_when_met
        self._must_not_hold = must_not_hold
        self._offload = offload
        self._host = host
        self._aim = aim
        self._target: Target | None = None
        self._thread = threading.get_ident()
        self._deferred = SignalsDeferred()
        self._obeyed: Directive | None = None
        self._holds_device = False
        self._share = MIN_SHARE
        self._beside = 0
        self._lapsed = False

    # ------------------------------------------------------------------------------------------------ called by hooks

    def wait_for_start(self) -> None:
        """Wait for the first directive, and hold until this process may train."""
        if self._mailbox is not None and self._launched:
            self._mailbox.inbox.wait(None, FIRST_DIRECTIVE_TIMEOUT)
        elif self._mailbox is not None:
            self._mailbox.inbox.wait_for_answer(FIRST_ANSWER_TIMEOUT)
        if self._offload is not None:
            self._offload.check()
        self.obey(NOTHING)

    def enter(self) -> None:
        """Before a batch: obey news, release the device if the quantum is over, and wait for the next one.

        The device is released here, with the next batch loaded, rather than after the last batch: the work between two
        batches is charged to the process that does it.
        """
        if self._host is not None and (host := self._host()) is not None:
            self._hangs.done()
            host.admit()
        if self._ranks is None and self._has_news():
            self.obey(NOTHING)
        self._take_turn()

    def admit(self) -> None:
        """Before a batch of another training of this process: let it train as this one may.

        It may be what this training waits for. So in a thread of its own it takes no turns, and holds only while this
        one does; within a hook of this one, it takes the turns of this one.
        """
        mailbox = self._mailbox
        while mailbox is not None and self._is_held(mailbox):
            if self._thread == threading.get_ident():
                self._release(again=False)
            mailbox.inbox.wait(mailbox.inbox.directive, MAX_WAIT)
        if self._thread == threading.get_ident():
            self._take_turn()

    def _is_held(self, mailbox: Mailbox) -> bool:
        """Return whether a training may not train now, whether its own thread has heard of it or not."""
        return self._ranks is None and self._wanted(mailbox.inbox.directive) is Action.HOLD

    def _take_turn(self) -> None:
        """Release the device if the quantum is over, and wait for the next one."""
        while self._throttle.pauses and (ahead := self._throttle.ahead()) > 0:
            self._release(again=False)
            self._pause(ahead)
        lock = None if self._throttle.by_kernel else self._device_lock
        if lock is not None and self._holds_device and lock.expired():
            self._release(again=True)
        while not self._holds_device and not self._acquire():
            if self._has_news():
                self.obey(NOTHING)

    def after_batch(self, side_actions: SideAction, batches: int) -> bool:
        """After a batch: obey the newest directive; several ranks do so only when they are due to agree.

        A job that offloads holds later: other hooks of this batch may still need the state.

        Returns:
            Whether anything is left to do after this batch, such as to save or to stop.
        """
        if self._ranks is not None:
            if self._ranks.due(batches):
                self.obey(side_actions)
        else:
            self.saving = side_actions is not NOTHING and SideAction.SAVE in side_actions
            self.holding = False
            if self._has_news():
                self._obey_or_hold_later(side_actions)
        return self.stopping or self.leaving or self.saving or self.keeping or self.holding or self.requeueing

    def _obey_or_hold_later(self, side_actions: SideAction) -> None:
        directive = None if self._mailbox is None else self._mailbox.inbox.directive
        self.holding = self._offload is not None and self._wanted(directive) is Action.HOLD
        if not self.holding:
            self.obey(side_actions)

    def meet(self) -> None:
        """Note that this process has met the target, unless its job is over; ranks agree on it before they stop."""
        if self._stop_when_met and not (self._mailbox is not None and isinstance(self._mailbox.inbox.directive, End)):
            self.wants_stop = True
            self.stopping = self._ranks is None

    @property
    def takes_turns(self) -> bool:
        """Whether this process shares its device by turns, with others that are there or may come."""
        return self._device_lock is not None or self._throttle.pauses

    def is_told_to_hold(self) -> bool:
        """Return whether the newest directive, not obeyed yet, is to hold."""
        mailbox = self._mailbox
        return mailbox is not None and self._has_news() and self._wanted(mailbox.inbox.directive) is Action.HOLD

    def between_batches(self) -> None:
        """Where nothing of the training runs: obey news."""
        if self._offload is not None and self._has_news():
            self.obey(NOTHING)

    def come_back(self) -> None:
        """Go on with a training that could not leave as it was told to."""
        if self._is_out():
            self.enter()

    def obey(self, side_actions: SideAction) -> None:
        """Carry out the newest directive; return when this process may train, has to stop, or has to leave.

        Raises:
            JobEnded: If a launched job has been ended with its target unmet.
            JobFenced: If another incarnation of a launched job has started.
        """
        self._hangs.done()  # it may take any time
        with self._deferred if self._ranks is not None else nullcontext():
            try:
                action = self._obey(side_actions)
            except BaseException:  # such as Ctrl-C: what ends the training may use the state
                if self._offload is not None:
                    self._offload.read_on_host()
                raise
        if self._mailbox is not None:
            self._mailbox.inbox.parked_at = None  # a hold may end without a new directive
        self.leaving = action is Action.LEAVE
        if self._offload is not None:
            self._offload.read_on_host()  # nothing if it is back
        if action is Action.STOP:
            self.stopping = True
        elif action in (Action.OVER, Action.FENCED):
            self._release(again=False)
            signal = JobEnded if action is Action.OVER else JobFenced
            raise signal(self._job, self._obeyed if isinstance(self._obeyed, End) else None)

    def _obey(self, side_actions: SideAction) -> Action:
        """Hold while told to; return what to do next."""
        while True:
            action = self._decide(side_actions)
            if action is Action.HOLD:
                self._hold()
            elif action not in (Action.GO, Action.STOP) or not self._is_out() or self._acquire():
                return action  # hooks that come before the next batch find the state where it was

    def close(self) -> float:
        """Release the device; return the busy seconds of the whole fit."""
        try:
            if self._offload is not None:
                self._offload.read_on_host()  # interrupted while it was held
            self._release(again=False)
        finally:
            self._close_own_device_lock()
            self._throttle.close()
        return self._timer.busy()

    # ------------------------------------------------------------------------------------------------ deciding

    def _decide(self, side_actions: SideAction) -> Action:
        if self._ranks is None:
            return self._decide_alone()
        try:
            action = self._decide_alone()
        except Exception as error:  # the other ranks wait for a decision, whatever happens here
            log.warning("%s: trains on as if it had been told to: %s: %s", self._job, type(error).__name__, error)
            action = Action.GO
        if action in (Action.GO, Action.LEAVE) and self.wants_stop:
            action = Action.STOP
        action, agreed = self._ranks.agree(action, side_actions)
        self._hangs.moves += 1  # also while they are held
        self.saving = self.saving or bool(agreed & SideAction.SAVE)
        self.keeping = bool(agreed & SideAction.KEEP)
        self.requeueing = self.requeueing or bool(agreed & SideAction.REQUEUE)
        return action

    def _decide_alone(self) -> Action:
        if self._mailbox is None:
            return Action.GO
        directive, known = self._mailbox.inbox.directive, self._obeyed
        self._obeyed = directive
        action = self._wanted(directive)
        if directive is not known:
            self._apply(directive)
        return action

    def _wanted(self, directive: Directive | None) -> Action:
        """Return what this process is to do by itself under a directive."""
        action = self._action_for(directive)
        refused = self._mailbox is not None and bool(self._mailbox.refused)
        if action in (Action.GO, Action.LEAVE) and (refused or self._check_lease()):
            action = Action.HOLD
        return Action.GO if action is Action.HOLD and self._must_go_on() else action

    def _has_news(self) -> bool:
        mailbox = self._mailbox
        return mailbox is not None and (
            mailbox.inbox.directive is not self._obeyed
            or mailbox.refused != ""
            or (self._launched and self._lease_over(mailbox))
        )

    def _lease_over(self, mailbox: Mailbox) -> bool:
        return self._launched and mailbox.inbox.unheard_for() > LEASE

    def _check_lease(self) -> bool:
        """Return whether the lease of a launched job is over; log when that begins."""
        before, self._lapsed = self._lapsed, self._mailbox is not None and self._lease_over(self._mailbox)
        if self._lapsed and not before:
            log.warning("%s: the scheduler has not answered for %.0f s: holding until it does", self._job, LEASE)
        return self._lapsed

    def _action_for(self, directive: Directive | None) -> Action:
        match directive:
            case End(version=0) if self._launched:
                return Action.FENCED
            case End(verdict=Verdict.MET) if self._stop_when_met:
                return Action.STOP
            case End() if self._launched:
                return Action.OVER
            case End(reason=reason) if reason.code.startswith(("diverged", "cancelled")):
                return Action.STOP  # the user has asked for it, with on_nan or by cancelling it
            case Grant(devices=devices) if self._launched and sorted(devices) != self._devices:
                return Action.LEAVE
            case Grant() if not directive.trains:
                return Action.HOLD
        return Action.GO

    def _apply(self, directive: Directive | None) -> None:
        """Take over share, companions, limit and device of a new grant, or report a new end."""
        beside = directive.beside if isinstance(directive, Grant) else 0
        if beside != self._beside:
            self._beside = beside
            self._release(again=False)  # it leaves the turns of its old companions, who may never wait for it
        match directive:
            case Grant():
                if directive.trains:
                    self._share = directive.share
                if directive.target is not None and directive.target != self._target and self._aim is not None:
                    self._target = directive.target
                    self._aim(directive.target)
                if self._ranks is None:
                    self._set_limit(directive.share if directive.capped and directive.share else None)
                if not self._launched and directive.devices and self._ranks is None:
                    self._move_to(directive.devices[0])
            case End(verdict=Verdict.MET):
                if self._launched:  # a script's last line says it
                    inform(f"{self._job}: {directive.reason}")
            case End() if not self._launched:
                if self._action_for(directive) is not Action.STOP:  # else the last line says it
                    log.warning("%s: %s: %s", self._job, directive.verdict, directive.reason)
                self._share = LAST_SHARE  # the script trains on, when no job of the pool needs its device
                if self._ranks is None:
                    self._set_limit(None)

    def _must_go_on(self) -> bool:
        mailbox = self._mailbox
        pool_lost = not self._launched and mailbox is not None and mailbox.silent_for() > POOL_TIMEOUT
        return pool_lost or bool(self._deferred.came) or self._must_not_hold()

    def _pause(self, seconds: float) -> None:
        """Stand still, unless there is news."""
        assert self._mailbox is not None  # the limit arrived there
        self._mailbox.inbox.wait(self._obeyed, seconds)
        if self._has_news():
            self.obey(NOTHING)

    # ------------------------------------------------------------------------------------------------ the device

    def _is_out(self) -> bool:
        return self._offload is not None and self._offload.is_out

    def _hold(self) -> None:
        """Release the device, the state moved off it before if the job offloads, and wait for news."""
        if self._offload is not None:
            self._stand_still()
            self._offload.move_out()
        self._release(again=False)
        if self._mailbox is not None:
            self._mailbox.inbox.parked_at = self._obeyed
            self._mailbox.inbox.wait(self._obeyed, MAX_WAIT)

    def _acquire(self) -> bool:
        """Wait a moment for the device, and move the state back to it; return whether the training may run."""
        self._hangs.done()  # it may take any time
        lock = None if self._throttle.by_kernel else self._device_lock
        acquired = lock is None or lock.acquire(self._share, MAX_WAIT, self._beside)
        if not acquired and (self._has_news() or not self._must_go_on()):
            if self._offload is not None and self._offload.is_out:
                self._offload.move_out()  # it stays out, and is there
            return False
        if self._offload is not None and not self._offload.move_back():
            self._release(again=False)  # what takes the room may need the device to leave it
            if self._mailbox is not None:
                self._mailbox.inbox.wait(self._obeyed, ROOM_INTERVAL)
            return False
        self._holds_device = True
        self._timer.begin()
        self._throttle.begin()
        return True

    def _set_limit(self, share: float | None) -> None:
        before = self._throttle.by_kernel
        self._throttle.set(share, self.cores_of_device())
        if self._throttle.by_kernel != before:
            self._release(again=False)  # the lock is no longer needed, or needed again
            if not before and self._device_lock is not None:
                self._device_lock.bind()

    def cores_of_device(self) -> int:
        """Return the cores of the device, which a script learns from the pool that it has joined."""
        return self._cores if self._launched or self._mailbox is None else self._mailbox.cores

    def _move_to(self, device: int) -> None:
        """Share the device on which the pool has found the script."""
        assert self._mailbox is not None  # grants arrive there
        known, paths = self._own_device_lock, self._mailbox.arbiters
        if (known is None or known[0] != device) and device < len(paths) and paths[device]:
            from lightning_core.node.arbiter_client import ArbiterClient
            from lightning_core.node.device_cores import cores_of

            self._release(again=False)
            self._close_own_device_lock()
            if self._timer.on_host:
                self._affinity = os.sched_getaffinity(0)
            bound = cores_of(device, self.cores_of_device(), Path(paths[device])) if self._timer.on_host else None
            tell = partial(log.warning, "%s: %s", self._job)
            self._device_lock = ArbiterClient(Path(paths[device]), cores=bound, tell=tell)
            self._own_device_lock = device, self._device_lock

    def _close_own_device_lock(self) -> None:
        if self._own_device_lock is not None:
            self._own_device_lock[1].close()
            self._own_device_lock = self._device_lock = None
        if self._affinity is not None:
            os.sched_setaffinity(0, self._affinity)
            self._affinity = None

    def _stand_still(self) -> None:
        """Wait until the device has done the work of this process, and stop counting it."""
        if self._holds_device:
            self._holds_device = False
            self._hangs.turn(Phase.QUANTUM_END)
            self._timer.end()
            self._hangs.done()
            self._throttle.end()

    def _release(self, *, again: bool) -> None:
        self._stand_still()
        if self._device_lock is not None:
            self._device_lock.release(again=again, share=self._share, beside=self._beside)
