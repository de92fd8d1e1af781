"""Why a training has ended, of what was raised in it: what becomes of the job depends on that.

Rules

1. What was raised first counts, not who passed it on: a rank that raises breaks the others' collectives, and its own
   too when it cleans up.
2. What comes of the config is ``UNUSABLE``: while the job was built, and no code but ours, Lightning's and the parser's
   was at work (a class path that does not import, an argument that does not parse). If the user's own code was, it
   ``RAISED``, be it an ``OSError`` in a constructor: trying again may help.
3. A process group that fell apart is ``LOST``: a peer hung up, or did not come to a collective in time. So is a process
   without memory.
"""

from __future__ import annotations

import re
import sysconfig
import traceback
from pathlib import Path
from types import ModuleType

from lightning_core.core.events import ExitCause
from lightning_core.storage.job_checkpoints import CheckpointUnreadableError

# What somebody who looks for it searches for.
OOM = "OOM"
# What gloo says, in errors that have no type of their own.
_FROM_PEERS = re.compile(
    r"gloo/|Connection closed by peer|Connection reset by peer|Timed out waiting \d+ms for (recv|send) operation"
    r"|Application timeout caused pair closure"
)


def cause_of(error: BaseException, *, building: bool) -> ExitCause:
    """Why a job's training has ended.

    Args:
        error: that it ended by.
        building: whether Trainer, model and data were still being built.
    """
    first = origin(error)
    if isinstance(first, MemoryError | CheckpointUnreadableError) or is_of_peers(first):
        return ExitCause.LOST
    return ExitCause.UNUSABLE if building and not _was_theirs(first) else ExitCause.RAISED


def is_of_peers(error: BaseException) -> bool:
    """Whether an error says that other ranks are gone, or at something else."""
    import torch.distributed

    kinds: tuple[type[BaseException], ...] = (torch.distributed.DistError,)
    return isinstance(error, kinds) or (isinstance(error, RuntimeError) and bool(_FROM_PEERS.search(str(error))))


def origin(error: BaseException) -> BaseException:
    """What was raised first, not who passed it on."""
    seen = {id(error)}
    while (cause := error.__context__ if error.__cause__ is None else error.__cause__) is not None:
        if id(cause) in seen:  # `raise error from error`
            break
        seen.add(id(cause))
        error = cause
    return error


def story(error: BaseException, rank: int = 0, of: int = 1) -> str:
    """The traceback of an error; the last line is the error in one line.

    Args:
        error: that a training ended by.
        rank: of the process in which it was raised.
        of: how many ranks there are.
    """
    first = origin(error)
    message = " ".join(str(error).split()) or "no message"
    said = f"{type(error).__name__}: {message}"
    if isinstance(first, MemoryError):
        said = f"{OOM}: {said}"
    elif is_of_peers(first):
        said = f"its ranks fell apart, says rank {rank} of {of}: {said}"
    return f"{''.join(traceback.format_exception(error))}{said}"


def _was_theirs(error: BaseException) -> bool:
    """Whether code was at work that is neither ours nor Lightning's nor the parser's."""
    return any(not _is_known(Path(frame.filename)) for frame in traceback.extract_tb(error.__traceback__))


def _is_known(file: Path) -> bool:
    import jsonargparse
    import lightning

    import lightning_core
    import lightning_core.callbacks

    if file.name.startswith("<"):  # of the interpreter, or made by it
        return True
    known = [_home(module) for module in (jsonargparse, lightning, lightning_core, lightning_core.callbacks)]
    if any(file.is_relative_to(home) for home in known):
        return True
    library = file.is_relative_to(sysconfig.get_paths()["stdlib"])
    return library and not {"site-packages", "dist-packages"} & set(file.parts)


def _home(module: ModuleType) -> Path:
    assert module.__file__ is not None  # a package of files
    return Path(module.__file__).parent
