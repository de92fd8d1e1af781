"""Records every collective of a process with where it was asked for, so that the sequences of ranks can be compared.

What DDP sends within ``backward`` is asked for in C++ and not seen here.
"""

from __future__ import annotations

import functools
import json
import sys
from collections.abc import Callable, Iterator, Sequence
from itertools import zip_longest
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple, TextIO

import torch.distributed

# Methods of a process group that communicate.
METHODS = (
    "_allgather_base", "_reduce_scatter_base", "allgather", "allgather_coalesced", "allgather_into_tensor_coalesced",
    "allreduce", "allreduce_coalesced", "alltoall", "alltoall_base", "barrier", "broadcast", "gather",
    "monitored_barrier", "recv", "reduce", "reduce_scatter", "reduce_scatter_tensor_coalesced", "scatter", "send",
)  # fmt: skip
# Frames of these are how a collective is done, and not where it was asked for.
HOW = ("torch/distributed/", "torch/utils/_contextlib", "tests/matrix/collectives")


class Collective(NamedTuple):
    """A collective of one rank."""

    kind: str
    sizes: tuple[int, ...]
    """Elements of each tensor."""
    stack: tuple[str, ...]
    """Where it was asked for, the innermost call first."""


def record(path: Path) -> None:
    """Record all collectives of this process from now on, each before it is done, in a file."""
    file = path.open("a", buffering=1)
    for name in METHODS:
        if (method := getattr(torch.distributed.ProcessGroup, name, None)) is not None:
            setattr(torch.distributed.ProcessGroup, name, _recorded(name, method, file))


def read(path: Path) -> list[Collective]:
    """Return what has been recorded in a file."""
    if not path.exists():
        return []
    rows = [json.loads(line) for line in path.read_text().splitlines() if line.endswith("]")]
    return [Collective(kind, tuple(sizes), tuple(stack)) for kind, sizes, stack in rows]


def difference(ranks: Sequence[Sequence[Collective]]) -> str:
    """Return where the sequences of ranks part, with the stack of each; empty if they do not.

    Collectives of the same kind and size are different if they are asked for in different places: one that a rank does
    alone may meet another one of the next rank, and both get a wrong answer.
    """
    for number, row in enumerate(zip_longest(*ranks), start=1):
        if len(set(row)) > 1:
            told = "\n".join(f"rank {rank}: {_describe(one)}" for rank, one in enumerate(row))
            return f"collective {number} is not the same on all ranks:\n{told}"
    return ""


def _describe(one: Collective | None) -> str:
    if one is None:
        return "none"
    return "\n    ".join([f"{one.kind} of {', '.join(map(str, one.sizes)) or 'nothing'} elements", *one.stack])


def _recorded(name: str, method: Callable[..., Any], file: TextIO) -> Callable[..., Any]:
    @functools.wraps(method)
    def call(group: Any, *args: Any, **options: Any) -> Any:
        sizes = [tensor.numel() for tensor in _tensors([*args, *options.values()])]
        stack = [frame for frame in _frames(sys._getframe(1)) if not any(how in frame for how in HOW)]
        file.write(json.dumps([name, sizes, stack[:12]]) + "\n")
        return method(group, *args, **options)

    return call


def _tensors(values: Sequence[Any]) -> Iterator[torch.Tensor]:
    for value in values:
        if isinstance(value, torch.Tensor):
            yield value
        elif isinstance(value, list | tuple):
            yield from _tensors(value)


def _frames(frame: FrameType | None) -> Iterator[str]:
    while frame is not None:
        code = frame.f_code
        yield f"{'/'.join(Path(code.co_filename).parts[-3:])}:{frame.f_lineno} {code.co_name}"
        frame = frame.f_back
