"""Suspend a process that has tensors and a captured graph, bring it back, and look whether anything has changed."""

from __future__ import annotations

import multiprocessing
import tempfile
import time
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, NamedTuple

import torch

from lightning_core.node.memory import free_on_host

GIB = 2**30
# Memory of the GPU beside the state: for contexts, and to compare. And host memory, as a multiple of the state.
BESIDE, ON_HOST = 3 * GIB, 1.25
# Seconds that a process may take to leave or to come back.
PATIENCE = 30.0


class Suspended(NamedTuple):
    """What has become of a process."""

    refused: str = ""
    """Why it was not suspended."""
    out: float = 0.0
    """Seconds until the GPU was free."""
    back: float = 0.0
    """Seconds until the process could go on."""
    left: int = 0
    """Bytes that it kept on the GPU, as another process saw."""
    changed: str = ""
    """What was not as before."""


def lacks_memory(gib: int) -> str:
    """Return which memory is missing to suspend a process with so much state; empty if none is."""
    from lightning_core.node.cuda_driver import CannotSuspendError, CudaDriver

    try:
        on_gpu = CudaDriver().free(f"GPU-{_uuid_without_context()}")
    except CannotSuspendError as error:
        return str(error)
    for where, needed, free in (
        ("on the GPU", gib * GIB + BESIDE, on_gpu),
        ("on the host", ON_HOST * gib * GIB, free_on_host()),
    ):
        if free < needed:
            return f"needs {needed / GIB:.0f} GiB of free memory {where}, found {free / GIB:.0f} GiB"
    return ""


def suspend_one(gib: int) -> Suspended:
    """Suspend a process with so much state. The suspender is in this one, which needs no CUDA context."""
    from lightning_core.node.cuda_driver import CannotSuspendError, CudaDriver
    from lightning_core.node.suspender import Suspender

    try:
        driver = CudaDriver()
    except CannotSuspendError as error:
        return Suspended(str(error))
    processes = multiprocessing.get_context("spawn")
    ours, theirs = processes.Pipe()
    with tempfile.TemporaryDirectory() as temp:
        suspender = Suspender(Path(temp) / "s")
        process = processes.Process(target=_child, args=(suspender.path, gib, theirs))
        process.start()
        theirs.close()
        try:
            gpu, before = ours.recv(), 0
            if gpu:
                before = driver.free(gpu)  # the child has no context yet
            ours.send(None)
            told = ours.recv()
            if isinstance(told, Suspended):
                return told
            left = before - driver.free(gpu)
            ours.send(None)
            done: Suspended = ours.recv()
            return done._replace(left=max(left, 0))
        except EOFError:
            process.join()
            raise RuntimeError(f"the suspended process ended with exit code {process.exitcode}") from None
        finally:
            ours.close()
            process.join(PATIENCE)
            if process.exitcode is None:
                process.kill()
            suspender.close()


def _child(path: Path, gib: int, parent: Connection) -> None:
    from lightning_core.agent.reporting.hang_watch import HangWatch
    from lightning_core.agent.steering.offload import Offload
    from lightning_core.agent.steering.suspension import Suspension

    uuid = f"GPU-{_uuid_without_context()}"
    parent.send(uuid)
    parent.recv()
    device, refused = torch.device("cuda", 0), list[str]()
    parts = [_random(number) for number in range(4 * gib)]
    weight, inputs = _random(-1)[: 2**20].float().view(1024, 1024) / 255, torch.ones(1024, device=device)
    stream: Any = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    with torch.cuda.stream(stream):  # as torch asks for before a capture
        (weight @ inputs).relu()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        result = (weight @ inputs).relu()
    graph.replay()
    expected, known = result.cpu(), [*parts, weight, inputs, result]
    addresses = [tensor.data_ptr() for tensor in known]
    hangs = HangWatch(None)
    suspension = Suspension("bench", Offload("bench", list, device), uuid, lambda: path, hangs,
                            lambda why, cause: refused.append(why))  # fmt: skip
    began = time.perf_counter()
    suspension.move_out()
    out = time.perf_counter() - began
    if not hangs.suspended:
        parent.send(Suspended(suspension.why_refused or "the process was not suspended"))
        return
    parent.send("out")
    parent.recv()
    began = time.perf_counter()
    while not suspension.move_back():
        time.sleep(0.01)
    back = time.perf_counter() - began
    result.zero_()
    graph.replay()
    changed = [
        what
        for what, same in (
            ("addresses", [tensor.data_ptr() for tensor in known] == addresses),
            ("the result of the captured graph", torch.equal(result.cpu(), expected)),
            ("the state", all(torch.equal(part, _random(number)) for number, part in enumerate(parts))),
        )
        if not same
    ]
    parent.send(Suspended("", out, back, 0, ", ".join(changed)))


def _random(number: int) -> torch.Tensor:
    """Return a quarter of a GiB of random bytes, the same for each number."""
    draw = torch.Generator("cuda").manual_seed(number + 1)
    return torch.randint(0, 256, (GIB // 4,), dtype=torch.uint8, device="cuda", generator=draw)


def _uuid_without_context() -> str:
    """Return the UUID of the first GPU: reading its properties makes no context."""
    return str(torch.cuda.get_device_properties(0).uuid)
