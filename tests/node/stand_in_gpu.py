"""A stand-in for a GPU at the calls of its driver: those of cuda-core, of the bindings below it, and of NVML."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

UUID = "GPU-1"
# What the driver says of each of its errors, as cuda-core raises them; but the first two, for which it has other words.
WORDS = {
    "CUDA_ERROR_NOT_SUPPORTED": "CUDA checkpointing is not supported by the installed NVIDIA driver.",
    "CUDA_ERROR_NOT_FOUND": "CUDA checkpointing is not supported by the installed NVIDIA driver.",
    "CUDA_ERROR_NOT_PERMITTED": "the attempted operation is not permitted",
    "CUDA_ERROR_NOT_READY": "asynchronous operations issued previously have not completed yet",
    "CUDA_ERROR_INVALID_VALUE": "one or more of the parameters is not within an acceptable range of values",
    "CUDA_ERROR_NOT_INITIALIZED": "the CUDA driver has not been initialized",
    "CUDA_ERROR_ILLEGAL_STATE": "a resource required by the API call is not in a valid state",
    "CUDA_ERROR_INVALID_CONTEXT": "there is no active context",
    "CUDA_ERROR_OUT_OF_MEMORY": "the API call failed because it was unable to allocate enough memory",
    "CUDA_ERROR_OPERATING_SYSTEM": "an OS call failed",
}


class CUDAError(Exception):
    """An error of the driver, as cuda-core raises it."""


class StandInGpu:
    """A GPU of some bytes, and what the driver knows of each process.

    Attributes:
        on_gpu: Bytes of each process on the GPU.
        on_host: Bytes of each that is suspended.
        calls: Calls of the driver in their order, each with its process.
        errors: Errors that the next calls of a name raise.
        fails: Whether a process whose copy raises is in the failed state.
    """

    def __init__(self, size: int) -> None:
        self.size = size
        self.on_gpu: dict[int, int] = {}
        self.on_host: dict[int, int] = {}
        self.states: dict[int, str] = {}
        self.spoilt: set[int] = set()
        self.calls: list[tuple[str, int]] = []
        self.errors: dict[str, list[str]] = {}
        self.fails = False
        self.timeouts: list[int] = []
        self.changed = threading.Condition()

    @property
    def free(self) -> int:
        return self.size - sum(self.on_gpu.values())

    def names(self) -> list[str]:
        return [name for name, _ in self.calls]

    def call(self, name: str, pid: int, *, wants: str) -> None:
        with self.changed:
            self.calls.append((name, pid))
            self.changed.notify_all()
        if errors := self.errors.get(name):
            self.raises(errors.pop(0))
        if self.states.setdefault(pid, "running") != wants:
            self.raises("CUDA_ERROR_ILLEGAL_STATE")

    def raises(self, name: str) -> None:
        if name in ("CUDA_ERROR_NOT_SUPPORTED", "CUDA_ERROR_NOT_FOUND"):
            raise RuntimeError(WORDS[name])
        raise CUDAError(f"{name}: {WORDS[name]}")

    def process(self, pid: int) -> Any:
        return _Process(self, pid)


class _Process:
    def __init__(self, gpu: StandInGpu, pid: int) -> None:
        self.gpu, self.pid = gpu, pid

    @property
    def state(self) -> str:
        return self.gpu.states.setdefault(self.pid, "running")

    def lock(self, timeout_ms: int = 0) -> None:
        self.gpu.timeouts.append(timeout_ms)
        self.gpu.call("lock", self.pid, wants="running")
        self.gpu.states[self.pid] = "locked"

    def checkpoint(self) -> None:
        try:
            self.gpu.call("checkpoint", self.pid, wants="locked")
        except Exception:
            self.gpu.states[self.pid] = "failed" if self.gpu.fails else "locked"
            raise
        self.gpu.on_host[self.pid] = self.gpu.on_gpu.pop(self.pid, 0)
        self.gpu.states[self.pid] = "checkpointed"

    def restore(self, gpu_mapping: object = None) -> None:
        self.gpu.call("restore", self.pid, wants="checkpointed")
        if self.pid in self.gpu.spoilt:
            self.gpu.raises("CUDA_ERROR_OPERATING_SYSTEM")
        if self.gpu.free < self.gpu.on_host[self.pid]:
            self.gpu.spoilt.add(self.pid)  # as a driver of 580 does
            self.gpu.raises("CUDA_ERROR_OUT_OF_MEMORY")
        self.gpu.on_gpu[self.pid] = self.gpu.on_host.pop(self.pid)
        self.gpu.states[self.pid] = "locked"

    def unlock(self) -> None:
        self.gpu.call("unlock", self.pid, wants="locked")
        self.gpu.states[self.pid] = "running"


@contextmanager
def installed(gpu: StandInGpu, missing: Sequence[str] = (), begins: str = "CUDA_SUCCESS") -> Iterator[None]:
    """Install the packages of a GPU, but some; ``begins`` is what ``cuInit`` returns."""
    codes: Any = SimpleNamespace(CUDA_SUCCESS=SimpleNamespace(name="CUDA_SUCCESS"))
    code = codes.CUDA_SUCCESS if begins == "CUDA_SUCCESS" else SimpleNamespace(name=begins)

    def handle(uuid: str) -> str:
        if uuid != UUID:
            raise CUDAError("Not Found")
        return uuid

    contents = {
        "cuda": {},
        "cuda.bindings": {"driver": SimpleNamespace(CUresult=codes, cuInit=lambda flags: (code,))},
        "cuda.core": {"checkpoint": SimpleNamespace(Process=gpu.process)},
        "pynvml": {
            "nvmlInit": lambda: None,
            "nvmlDeviceGetHandleByUUID": handle,
            "nvmlDeviceGetMemoryInfo": lambda _: SimpleNamespace(free=gpu.free),
        },
    }
    with pytest.MonkeyPatch.context() as patch:
        for name, attributes in contents.items():
            module: Any = ModuleType(name)
            vars(module).update(attributes)
            patch.setitem(sys.modules, name, None if name in missing else module)
        yield
