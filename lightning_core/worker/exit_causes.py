"""Causes of the end of a training, from the exception that it raised; the cause decides whether the job is retried.

Rules

1. The first exception counts, not those that it caused: a rank that raises breaks the others' collectives, and its own
   when it cleans up.
2. ``UNUSABLE`` is an error of the config: one that is raised while the job is built, with no code in the traceback but
   ours, Lightning's and the parser's (a class path that does not import, an argument that does not parse). With the
   user's code in the traceback it is ``RAISED``, even for an ``OSError`` in a constructor: a retry may help.
3. ``OUT_OF_MEMORY`` is an error of Python, torch, a driver or the kernel that says so, also while the job is built.
4. ``LOST`` is a broken process group (a peer closed the connection, or missed a collective): the rank that broke it
   reports why.
5. Of a script there is its exit code, and the end of what it has printed. A signal is ``LOST``, unless it was the
   kernel's for want of memory; another code is ``RAISED``, or ``OUT_OF_MEMORY`` if its last traceback says so.
"""

from __future__ import annotations

import errno
import re
import signal
import sysconfig
import traceback
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType

from lightning_core.core.events import ExitCause
from lightning_core.node.signals import describe_signal
from lightning_core.storage.job_checkpoints import CheckpointUnreadableError

# Word by which users search for out-of-memory errors.
OOM = "OOM"
# Messages of errors for want of memory that torch raises without a type of their own.
_OUT_OF_MEMORY = re.compile(
    r"DefaultCPUAllocator: can't allocate memory|DefaultCPUAllocator: not enough memory|CUDA error: out of memory"
    r"|CUBLAS_STATUS_ALLOC_FAILED|CUDNN_STATUS_ALLOC_FAILED"
)
# Messages of gloo, whose errors have no type of their own.
_FROM_PEERS = re.compile(
    r"gloo/|Connection closed by peer|Connection reset by peer|Timed out waiting \d+ms for (recv|send) operation"
    r"|Application timeout caused pair closure"
)
# Last lines of tracebacks that say the same.
_OF_MEMORY = re.compile(rf"^(\w+\.)*(OutOfMemoryError|MemoryError)\b|CUDA out of memory|{_OUT_OF_MEMORY.pattern}")
# Lines of a script's output in its story.
STORY_LINES = 60


def cause_of(error: BaseException, *, building: bool) -> ExitCause:
    """Return the cause of the end of a training.

    Args:
        error: Exception that ended it.
        building: Whether Trainer, model and data were still being built.
    """
    first = origin(error)
    if is_out_of_memory(first):
        return ExitCause.OUT_OF_MEMORY
    if isinstance(first, CheckpointUnreadableError) or is_from_peers(first):
        return ExitCause.LOST
    return ExitCause.UNUSABLE if building and not _involves_user_code(first) else ExitCause.RAISED


def is_out_of_memory(error: BaseException) -> bool:
    """Return whether an error means that the device or the node has run out of memory."""
    import torch

    if isinstance(error, OSError):
        return error.errno == errno.ENOMEM
    kinds = (MemoryError, torch.OutOfMemoryError)
    return isinstance(error, kinds) or (isinstance(error, RuntimeError) and bool(_OUT_OF_MEMORY.search(str(error))))


def is_from_peers(error: BaseException) -> bool:
    """Return whether an error means that other ranks are lost, or in another collective."""
    import torch.distributed

    kinds: tuple[type[BaseException], ...] = (torch.distributed.DistError,)
    return isinstance(error, kinds) or (isinstance(error, RuntimeError) and bool(_FROM_PEERS.search(str(error))))


def origin(error: BaseException) -> BaseException:
    """Return the exception that was raised first."""
    seen = {id(error)}
    while (cause := error.__context__ if error.__cause__ is None else error.__cause__) is not None:
        if id(cause) in seen:  # `raise error from error`
            break
        seen.add(id(cause))
        error = cause
    return error


def story(error: BaseException, rank: int = 0, of: int = 1) -> str:
    """Return the traceback of an error; its last line is the error in one line.

    Args:
        error: Exception that ended a training.
        rank: Rank of the process in which it was raised.
        of: Number of ranks.
    """
    first = origin(error)
    message = " ".join(str(error).split()) or "no message"
    said = f"{type(error).__name__}: {message}"
    if is_out_of_memory(first):
        said = f"{OOM}: {said}"
    elif is_from_peers(first):
        said = f"its process group broke, reported by rank {rank} of {of}: {said}"
    return f"{''.join(traceback.format_exception(error))}{said}"


def exit_of_script(code: int, output: str) -> tuple[ExitCause, str]:
    """Return the cause of the end of a script that has failed, and its story, with the error in the last line.

    Args:
        code: Exit code, neither 0 nor that of a release; the negative number of a signal.
        output: End of what it has printed.

    Example::

        >>> exit_of_script(3, "epoch 1\\n")
        (<ExitCause.RAISED: 'raised'>, 'epoch 1\\nthe script ended with exit code 3')
        >>> exit_of_script(-11, "")
        (<ExitCause.LOST: 'lost'>, 'the script was killed by SIGSEGV')
    """
    lines = output.rstrip().splitlines()[-STORY_LINES:]
    if code < 0:
        known = -code in {int(number) for number in signal.Signals}
        by = describe_signal(-code) if known else f"signal {-code}"
        return ExitCause.LOST, "\n".join([*lines, f"the script was killed by {by}"])
    errors = _last_errors(lines)
    if want := next((error for error in errors if _OF_MEMORY.search(error)), None):
        return ExitCause.OUT_OF_MEMORY, "\n".join([*lines, f"{OOM}: {want}"])
    return ExitCause.RAISED, "\n".join([*lines, errors[-1] if errors else f"the script ended with exit code {code}"])


def _last_errors(lines: Sequence[str]) -> list[str]:
    """Return the error of the last traceback among lines, after those that have led to it; empty if there is none.

    Example::

        >>> _last_errors(["Traceback (most recent call last):", '  File "a.py", line 1', "ValueError: no", "bye"])
        ['ValueError: no']
    """
    errors: list[str] = []
    within = linked = False
    for line in lines:
        if line.startswith("Traceback (most recent"):
            errors, within, linked = errors if linked else [], True, False
        elif within and line and not line[0].isspace():
            errors.append(line)
            within = False
        linked = linked or line.startswith(("During handling of the above", "The above exception was the direct"))
    return errors


def _involves_user_code(error: BaseException) -> bool:
    """Return whether the traceback has code that is neither ours nor Lightning's nor the parser's."""
    return any(not _is_known(Path(frame.filename)) for frame in traceback.extract_tb(error.__traceback__))


def _is_known(file: Path) -> bool:
    import jsonargparse
    import lightning

    import lightning_core.callbacks

    if file.name.startswith("<"):  # of the interpreter, or generated
        return True
    known = [_home(module) for module in (jsonargparse, lightning, lightning_core, lightning_core.callbacks)]
    if any(file.is_relative_to(home) for home in known):
        return True
    library = file.is_relative_to(sysconfig.get_paths()["stdlib"])
    return library and not {"site-packages", "dist-packages"} & set(file.parts)


def _home(module: ModuleType) -> Path:
    assert module.__file__ is not None  # a package of files
    return Path(module.__file__).parent
