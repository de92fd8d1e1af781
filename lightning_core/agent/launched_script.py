"""What a script was told that a pool has launched: its job, its scheduler, its device, and where it saves.

The worker that starts a script writes it into a private file, and names that file in ``LIGHTNING_CORE_LAUNCHED``. The
first process that reads it here is the job: it reports, takes turns and saves. What that process starts is a part of
it, and finds nothing.

An adapter of a loop does this::

    launched = launched_script()
    if launched is not None:
        join(launched.client(), launched.device_lock(), launched.incarnation, ...)
        if launched.resume_path is not None:
            load(launched.resume_path)
        ...
        if told_to_leave or launched.due():         # after a batch
            if launched.may_save():
                with launched.saving(batches) as path:
                    save(path)                      # a file, or a folder
            if told_to_leave and not launched.fails:
                report(launched.last_checkpoint)
                launched.note_release()
                raise SystemExit(RELEASED_CODE)

Nothing here imports torch, Ray or Lightning.
"""

from __future__ import annotations

import json
import logging
import os
import re
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from lightning_core.core.events import Checkpoint, ExitCause, WorkerExited
from lightning_core.core.jobs import OnHold
from lightning_core.core.protocols import Client, DeviceLock
from lightning_core.core.targets import Target, target_from_dict
from lightning_core.core.validation import converted
from lightning_core.errors import LightningCoreError
from lightning_core.regular_files import read_regular
from lightning_core.storage.job_checkpoints import FILE
from lightning_core.storage.job_specs import MIN_TRAINING_PER_SAVE
from lightning_core.storage.saved_files import SavedFiles
from lightning_core.variables import PREFIX

log = logging.getLogger(__name__)

LAUNCHED, RESUME = f"{PREFIX}LAUNCHED", f"{PREFIX}RESUME"
# Exit code by which a script says that it has saved and left because it was told to (EX_TEMPFAIL of sysexits.h).
RELEASED_CODE = 75
# Name of the file, and of the one beside it that is locked by the process that is the job.
TERMS_FILE, OWNER_FILE = "launched.json", "owner"
MAX_TERMS_BYTES = 2**20
# Seconds until a failed save is tried again: doubled after each failure, from the first to the second.
MIN_SAVE_DELAY, MAX_SAVE_DELAY = 1.0, 60.0
# Messages of errors of the disk that torch raises without a type of their own.
_FROM_DISK = re.compile(r"PytorchStreamWriter|inline_container|iostream error|No space left on device")


class LaunchUnreadableError(LightningCoreError, OSError):
    """What a launched script was told cannot be read; the message names the file."""


@dataclass(frozen=True)
class ScriptTerms:
    """What a worker tells the script that it starts, as plain data.

    Args:
        job: Name of the job.
        incarnation: Incarnation of the job.
        target: Target of the job, as of :meth:`~lightning_core.core.targets.Target.to_dict`.
        socket: Path of the socket at which its scheduler is reached.
        folder: Folder of the incarnation's checkpoints.
        resume: Path of the checkpoint from which it resumes; None if it begins.
        arbiter: Path of the socket of its device's arbiter; None if the device is not shared.
        bound: Cores to pin the training thread to; None for any.
        devices: Devices that it trains on.
        cores: Cores of its device if that is a CPU.
        hang: Seconds that any step may take before it hangs; None for any time.
        on_hold: What becomes of its memory on a GPU while it is held.
        every: Minimum batches per loss cell.
        suspender: Path of the socket of its device's suspender; None if there is none.
        save_every: Minimum seconds between two periodic checkpoints.
    """

    job: str
    incarnation: int
    target: dict[str, Any]
    socket: str
    folder: str
    resume: str | None
    arbiter: str | None
    bound: list[int] | None
    devices: list[int]
    cores: int
    hang: float | None
    on_hold: str
    every: int
    suspender: str | None
    save_every: float

    def write(self, folder: Path) -> Path:
        """Write the terms into a private folder; return the path of the file, which its user alone can read."""
        path = folder / TERMS_FILE
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        with os.fdopen(descriptor, "w") as file:
            json.dump(asdict(self), file)
        return path

    @classmethod
    def read(cls, path: Path) -> ScriptTerms:
        """Return the terms of a file.

        Raises:
            LaunchUnreadableError: If it cannot be read.
        """
        try:
            terms: ScriptTerms = converted(json.loads(read_regular(path, MAX_TERMS_BYTES)), cls)
        except (OSError, ValueError, TypeError, KeyError) as error:
            raise LaunchUnreadableError(f"{path}: {type(error).__name__}: {error}") from None
        return terms


class LaunchedScript:
    """The script of a launched job, in the process that is the job.

    Args:
        terms: What its worker has told it.

    Attributes:
        job: Name of the job.
        target: Target of the job, which has precedence over what the script says.
        incarnation: Incarnation of the job that this process trains.
        devices: Devices that the job trains on.
        cores: Cores of its device if that is a CPU.
        hang: Seconds that any step may take before it hangs; None for any time.
        on_hold: What becomes of its memory on a GPU while it is held.
        every: Minimum batches per loss cell.
        suspender: Path of the socket of its device's suspender; None if there is none.
        save_every: Minimum seconds between two periodic checkpoints.
        folder: Folder of the incarnation's checkpoints.
        resume_path: File or folder from which it resumes, as it was saved; None if it begins.
        last_checkpoint: The newest checkpoint of this incarnation, to be reported; None before there is one.
        fails: Whether the last attempt to save has failed, so that the job must not leave.
    """

    def __init__(self, terms: ScriptTerms) -> None:
        self._terms = terms
        self.job = terms.job
        self.target: Target = target_from_dict(terms.target)
        self.incarnation = terms.incarnation
        self.devices = tuple(terms.devices)
        self.cores = terms.cores
        self.hang = terms.hang
        self.on_hold = OnHold(terms.on_hold)
        self.every = terms.every
        self.suspender = None if terms.suspender is None else Path(terms.suspender)
        self.save_every = terms.save_every
        self.folder = Path(terms.folder)
        self.resume_path = None if terms.resume is None else Path(terms.resume)
        self.last_checkpoint: Checkpoint | None = None
        self._files = SavedFiles(self.folder, FILE)
        self._next = time.monotonic() + terms.save_every
        self._failures = 0
        self._not_before = 0.0
        self._has_trained = False

    @property
    def fails(self) -> bool:
        """Whether the last attempt to save has failed."""
        return self._failures > 0

    def client(self) -> Client:
        """Return a new connection to the scheduler; each call raises ConnectionError while that is away."""
        from lightning_core.server.clients.socket_client import SocketClient

        return SocketClient(Path(self._terms.socket))

    def device_lock(self) -> DeviceLock | None:
        """Return the lock of its device; None if the device is not shared."""
        if self._terms.arbiter is None:
            return None
        from lightning_core.node.arbiter_client import ArbiterClient

        return ArbiterClient(Path(self._terms.arbiter), cores=self._terms.bound)

    def begin_training(self) -> bool:
        """Note that a training begins; return whether it is the job, which the first of this process is alone."""
        first, self._has_trained = not self._has_trained, True
        return first

    # ------------------------------------------------------------------------------------------------ saving

    def due(self) -> bool:
        """Return whether it is time for a periodic checkpoint."""
        return time.monotonic() >= max(self._next, self._not_before)

    def may_save(self) -> bool:
        """Return whether to try to save now: not again for a while after it has failed."""
        return time.monotonic() >= self._not_before

    @contextmanager
    def saving(self, batches: int) -> Iterator[Path]:
        """Give a path for a checkpoint; when the block ends well, it is complete, and :attr:`last_checkpoint`.

        An error of the disk is logged and not raised: the training goes on, with the checkpoint before (:attr:`fails`).

        Args:
            batches: Batches done.

        Yields:
            A path where nothing is yet: write a file there, or make a folder.

        Raises:
            NothingSavedError: If nothing was written there.
            CorruptCheckpointError: If something in it is neither a file nor a folder.
        """
        began = time.monotonic()
        try:
            with self._files.saving(batches) as path:
                yield path
        except Exception as error:
            if not _is_from_disk(error):
                raise
            self._postpone(error)
        else:
            self._note_saved(began)

    def saved(self, path: Path | str, batches: int) -> None:
        """Take a file or folder that the script has saved at a place of its own, once it is complete.

        It is copied: the script may write its next one to the same place, or remove it. Errors as of :meth:`saving`.

        Args:
            path: Path of the file or folder.
            batches: Batches done.
        """
        began = time.monotonic()
        try:
            self._files.copy(Path(path), batches)
        except OSError as error:
            self._postpone(error)
        else:
            self._note_saved(began)

    def note_checkpoint(self, checkpoint: Checkpoint | None) -> None:
        """Note a checkpoint that was written into :attr:`folder` by other means, as Lightning's are."""
        self.last_checkpoint = checkpoint

    def note_release(self) -> None:
        """Say that the job leaves because it was told to: a program that has started this one may lose its exit code.

        To be followed by an exit with :data:`RELEASED_CODE`.
        """
        self._say(WorkerExited(self.job, self.incarnation, ExitCause.RELEASED))

    def give_up(self, story: str, cause: ExitCause = ExitCause.HUNG) -> None:
        """Say that the training hangs, or is lost, and end this process: nothing else ends a thread.

        Args:
            story: Place of its thread, and the duration in the last line; or why it is lost.
            cause: Cause of the end.
        """
        self._say(WorkerExited(self.job, self.incarnation, cause, story))
        os._exit(1)

    def _say(self, exit: WorkerExited) -> None:
        """Tell the worker how this process ends, which it reports once everything has ended."""
        client = self.client()
        with suppress(ConnectionError):  # it sees the exit code at least
            client.left(exit)
        client.close()

    def _note_saved(self, began: float) -> None:
        self.last_checkpoint = self._files.newest
        if self.fails:
            log.warning("%s: it could be saved again", self.job)
        self._failures, self._not_before = 0, 0.0
        now = time.monotonic()
        self._next = now + max(self.save_every, MIN_TRAINING_PER_SAVE * (now - began))

    def _postpone(self, error: Exception) -> None:
        if not self.fails:
            log.warning("%s: its checkpoint could not be saved: %s: %s. Training continues, and saving is tried again",
                        self.job, type(error).__name__, " ".join(str(error).split()))  # fmt: skip
        self._not_before = time.monotonic() + min(MIN_SAVE_DELAY * 2.0 ** min(self._failures, 20), MAX_SAVE_DELAY)
        self._failures += 1


def launched_script(environment: Mapping[str, str] = os.environ) -> LaunchedScript | None:
    """Return what this process was told if it is the script of a launched job; None if it is not, or a part of one.

    Args:
        environment: Variables of the process.
    """
    path = environment.get(LAUNCHED)
    if not path:
        return None
    key = os.getpid(), path
    if key not in _taken:
        try:
            if not _claim(Path(path).with_name(OWNER_FILE)):
                return None
            _taken.setdefault(key, LaunchedScript(ScriptTerms.read(Path(path))))
        except OSError as error:
            log.warning("this script is not the job of a pool that %s says it is: %s", LAUNCHED, error)
            return None
    return _taken[key]


def is_part_of_launched(environment: Mapping[str, str] = os.environ) -> bool:
    """Return whether this process was started, directly or not, as the script of a launched job or by it."""
    return bool(environment.get(LAUNCHED))


# Scripts by the process that is the job, since a fork has a copy of this, and the open files that hold their locks.
_taken: dict[tuple[int, str], LaunchedScript] = {}
_locks: list[int] = []


def _claim(path: Path) -> bool:
    """Lock a file for the life of this process, which a fork does not inherit; return whether it was free.

    Raises:
        OSError: If the file cannot be made.
    """
    import fcntl  # which not every system has

    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(descriptor)
        return False
    _locks.append(descriptor)  # closing any descriptor of the file would release it
    return True


def _is_from_disk(error: Exception) -> bool:
    """Return whether saving failed because of the disk, rather than of what was to be saved."""
    return isinstance(error, OSError) or (isinstance(error, RuntimeError) and bool(_FROM_DISK.search(str(error))))
