"""Runs the script of a job for one incarnation, from its start to the end of everything that it has started.

Rules

1. The worker alone reports how the script has ended: by its exit code, or by what the script told it before.
2. Exit code 75 is a release if the job was told to leave, 0 is the end of the training. A script that was told to
   leave, or whose job is over, has bounded time: then all its processes are ended.
3. A script whose target is met may go on for a while with what follows its training, such as a test or an upload.
"""

from __future__ import annotations

import logging
import math
import os
import tempfile
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from lightning_core.agent.launched_script import LAUNCHED, RELEASED_CODE, RESUME, ScriptTerms
from lightning_core.bundle.scripts import find_command
from lightning_core.core.answers import End, Verdict
from lightning_core.core.durations import format_duration
from lightning_core.core.events import ExitCause, WorkerExited
from lightning_core.core.targets import Target, parse_target
from lightning_core.node.memory import MemoryKills
from lightning_core.storage.atomic_files import replace_link
from lightning_core.storage.job_checkpoints import FILE, FoundCheckpoint, checkpoint_folder, find, newest_written
from lightning_core.variables import PREFIX
from lightning_core.worker.assignment import Assignment, Incarnation
from lightning_core.worker.exit_causes import OOM, exit_of_script
from lightning_core.worker.relay import Forward, Relay, is_fenced, serving
from lightning_core.worker.script_process import ScriptProcess, nothing_left

log = logging.getLogger(__name__)

# Multiple of the time that a step may take, within which a script that is told to leave has to save and leave.
LEAVE_FACTOR = 2.0
# Seconds within which a script has to leave whose job is over with its target unmet, and with its target met.
END_WITHIN, FINISH_WITHIN = 20.0, 600.0
# Seconds between two looks at what the scheduler has said.
LOOK_INTERVAL = 0.25
# Seconds after which a script that has not joined is told so in its log.
JOIN_NOTICE = 120.0
# Variables of the worker that are not for its script: they tell Ray of this worker, and hold the token of the pool.
NOT_PASSED_ON = ("RAY_", PREFIX)
HOW_TO_JOIN = "a loop joins by `with lightning_core.track() as run`, a Trainer of Lightning by itself"
NEVER_JOINED = f"with its script, which never joined the job and was in no turn of its device: {HOW_TO_JOIN}"


class WorkerDevice(NamedTuple):
    """The device of a worker, as the script is told of it."""

    arbiter: Path | None
    """Path of its arbiter's socket; None if it is not shared."""
    bound: list[int] | None = None
    """Cores to pin the training thread to; None for any."""
    cores: int = 1
    """Its cores, if it is a CPU."""
    threads: int = 1
    """Threads that a process should use."""
    suspender: Path | None = None
    """Path of its suspender's socket."""


def run_script(assignment: Assignment, device: WorkerDevice, forward: Forward) -> WorkerExited:
    """Run the script of a job; return how it has ended.

    Args:
        assignment: The job and its incarnation.
        device: Device of the worker.
        forward: Calls the scheduler.

    Raises:
        OSError: If it could not be run for want of files, memory or processes of this machine.
    """
    left = WorkerExited(assignment.job, assignment.incarnation)
    home = Path(assignment.folder)
    folder = checkpoint_folder(home, assignment.incarnation)
    folder.mkdir(parents=True, exist_ok=True)
    found = find(folder)  # only checkpoints that the pool manager has put there
    try:
        command, runs_in = find_command(assignment.script, [Path(path) for path in assignment.paths])
    except OSError as error:  # it was there when the job was submitted, perhaps on another machine
        return replace(left, cause=ExitCause.BROKEN, detail=f"its script cannot be run here: {error}")
    beside = None if device.arbiter is None else device.arbiter.parent.parent
    incarnation = Incarnation(assignment.job, assignment.incarnation, assignment.scheduler)
    relay = Relay(incarnation, assignment.devices, forward)
    with tempfile.TemporaryDirectory(prefix="lc-script-", dir=beside) as private, nothing_left(Path(private)) as mark:
        socket = Path(private) / "relay"
        terms = _terms(assignment, device, socket, folder, found).write(Path(private))
        with serving(relay, socket):
            process = ScriptProcess(
                command,
                runs_in,
                _environment(os.environ, assignment, device, terms, found),
                home / "log.txt",
                mark,
            )
            run = _RunningScript(assignment, relay, process)
            try:
                reason = run.wait()
            finally:
                code = process.end()
    saved = newest_written(folder)
    _link(home / FILE, saved)
    return replace(run.describe(code, reason), checkpoint=None if saved is None else saved.checkpoint)


class _RunningScript:
    """One script that runs.

    Args:
        assignment: The job and its incarnation.
        relay: Relay of its calls.
        process: Its process.
    """

    def __init__(self, assignment: Assignment, relay: Relay, process: ScriptProcess) -> None:
        self._assignment, self._relay, self._process = assignment, relay, process
        self._kills = MemoryKills()
        self._since: tuple[object, float] = (None, 0.0)

    def wait(self) -> str:
        """Wait until the script has ended; return why it has to be ended, empty if it has ended by itself."""
        began, told = time.monotonic(), False
        while not self._process.has_ended(LOOK_INTERVAL):
            self._kills.look()
            if not told and not self._relay.has_reported and time.monotonic() - began > JOIN_NOTICE:
                told = True
                note(self._assignment, f"this script has not joined its job: it takes no turns; {HOW_TO_JOIN}")
            asked, within = self._asked_to_leave()
            if asked != self._since[0]:
                self._since = asked, time.monotonic()
            elif asked and time.monotonic() - self._since[1] >= within:
                return f"{asked} and did not leave within {format_duration(within)}"
        return ""

    def describe(self, code: int, forced: str) -> WorkerExited:
        """Return how the script has ended.

        Args:
            code: Exit code of its process.
            forced: Why it had to be ended; empty if it has ended by itself.
        """
        left = WorkerExited(self._assignment.job, self._assignment.incarnation)
        directive, output = self._relay.directive, self._process.tail()
        if is_fenced(directive):
            return replace(left, cause=ExitCause.LOST, detail="another incarnation of the job has begun")
        if isinstance(directive, End):
            return replace(left, detail="with its script")  # it ends as it likes, or was ended
        if forced:
            return replace(left, cause=ExitCause.HUNG, detail="\n".join([*output.splitlines()[-20:], forced]))
        word = self._relay.last_word
        says_released = code == RELEASED_CODE or (word is not None and word.cause is ExitCause.RELEASED)
        if says_released and self._relay.was_told_to_leave:
            return replace(left, cause=ExitCause.RELEASED)
        if word is not None and word.cause is not ExitCause.RELEASED:
            return replace(left, cause=word.cause, detail=word.detail)
        if code == 0:
            return replace(left, detail="with its script" if self._relay.has_reported else NEVER_JOINED)
        if code == -9 and (death := self._kills.why_died())[1]:
            killed, words = death
            if killed:
                return replace(left, cause=ExitCause.OUT_OF_MEMORY, detail=f"{OOM}: {words}")
            return replace(left, cause=ExitCause.LOST, detail=f"the script was killed by SIGKILL ({words})")
        cause, story = exit_of_script(code, output)
        if says_released:
            story = f"{story}, by which it says that it was told to leave, and it was not"
        return replace(left, cause=cause, detail=story)

    def _asked_to_leave(self) -> tuple[str, float]:
        """Return why the script has to leave, empty if it has not, and within how many seconds."""
        directive = self._relay.directive
        if is_fenced(directive):
            return "another incarnation has begun", 0.0
        if isinstance(directive, End):
            return "the job is over", FINISH_WITHIN if directive.verdict is Verdict.MET else END_WITHIN
        if self._relay.is_told_to_leave(directive):
            hang = self._assignment.hang
            return "the script was told to save and leave", math.inf if hang is None else LEAVE_FACTOR * hang
        return "", math.inf


def note(assignment: Assignment, words: str) -> None:
    """Add a line to the log of a job."""
    with suppress(OSError), (Path(assignment.folder) / "log.txt").open("a") as file:
        print(f"lightning_core: {assignment.job}: {words}", file=file)


def _terms(
    assignment: Assignment, device: WorkerDevice, socket: Path, folder: Path, found: FoundCheckpoint | None
) -> ScriptTerms:
    return ScriptTerms(
        job=assignment.job,
        incarnation=assignment.incarnation,
        target=assignment.target.to_dict(),
        socket=str(socket),
        folder=str(folder),
        resume=None if found is None else str(found.path),
        arbiter=None if device.arbiter is None else str(device.arbiter),
        bound=device.bound,
        devices=list(assignment.devices),
        cores=device.cores,
        hang=assignment.hang,
        on_hold=str(assignment.on_hold),
        every=assignment.cell,
        suspender=None if device.suspender is None else str(device.suspender),
        save_every=assignment.save_every,
    )


def _environment(
    ours: Mapping[str, str],
    assignment: Assignment,
    device: WorkerDevice,
    terms: Path,
    found: FoundCheckpoint | None,
) -> dict[str, str]:
    """Return the variables of a script: the user's, its device's, and what its worker tells it."""
    variables = {name: value for name, value in ours.items() if not name.startswith(NOT_PASSED_ON)}
    variables |= {
        "OMP_NUM_THREADS": str(device.threads),
        f"{PREFIX}JOB": assignment.job,
        **_in_a_line(assignment.target),
        LAUNCHED: str(terms),
        **({} if found is None else {RESUME: str(found.path)}),
    }
    return {"PYTHONUNBUFFERED": "1", **variables}


def _in_a_line(target: Target) -> dict[str, str]:
    """Return the variable of a target, for Trainers in what the script starts; one of a part may have no line."""
    with suppress(ValueError):
        if parse_target(text := str(target)) == target:
            return {f"{PREFIX}TARGET": text}
    return {}


def _link(link: Path, saved: FoundCheckpoint | None) -> None:
    """Point a link in the job's folder to its last checkpoint, whichever incarnation wrote it."""
    if saved is None or not saved.path.exists():
        return
    try:
        replace_link(link, saved.path.relative_to(link.parent))
    except OSError as error:
        log.warning("%s does not point to the last checkpoint: %s", link, error)
