"""Moves the CUDA state of another process off its GPU and back, by calls of the driver (NVIDIA's ``cuda.core``).

Rules

1. A process is locked, which waits for what it has submitted; copied to the host's memory, the GPU free; restored at
   the same addresses; and unlocked. What it calls of CUDA meanwhile blocks. Its state says where it stands, and so what
   is left to do: bringing a process back can be begun anywhere, by any process of its user, itself included.
2. A restore is tried once, where there is room. A driver that had none never restores that process again, however much
   is free later (seen with 580): there is nothing to do but to end it.
3. A process whose copy failed is unlocked, and goes on as if it had not been asked for. If that fails too, it is lost.
"""

from __future__ import annotations

from typing import Any

from lightning_core.errors import LightningCoreError

# Milliseconds for which the driver waits until a process has done what it has submitted.
LOCK_TIMEOUT = 10_000
# What is needed, as users install it.
INSTALL = "run pip install -c constraints.txt '.[gpu]' in the clone"


class CannotSuspendError(LightningCoreError, RuntimeError):
    """The driver does not suspend a process, which goes on as it was."""


class ProcessLostError(LightningCoreError, RuntimeError):
    """A process cannot be brought back: all that it calls of CUDA blocks or fails."""


class CudaDriver:
    """The driver of this machine; makes no CUDA context, and so takes no memory of a GPU.

    Raises:
        CannotSuspendError: If a package is missing, or the driver cannot be called.
    """

    def __init__(self) -> None:
        try:
            import pynvml
            from cuda.bindings import driver
            from cuda.core import checkpoint

            (error,) = driver.cuInit(0)  # a restore may need it
            if error != driver.CUresult.CUDA_SUCCESS:
                raise CannotSuspendError(f"cuInit returns {error.name}")
            pynvml.nvmlInit()
        except ImportError as error:
            raise CannotSuspendError(f"this needs {error.name}, which is not installed; {INSTALL}") from error
        except CannotSuspendError:
            raise
        except Exception as error:
            raise CannotSuspendError(_words(error)) from error
        self._nvml: Any = pynvml
        self._process: Any = checkpoint.Process

    def free(self, device: str) -> int:
        """Return the bytes that are free on a GPU.

        Args:
            device: UUID of the GPU, as NVML has it.

        Raises:
            CannotSuspendError: If that cannot be known.
        """
        try:
            return int(self._nvml.nvmlDeviceGetMemoryInfo(self._nvml.nvmlDeviceGetHandleByUUID(device)).free)
        except Exception as error:
            raise CannotSuspendError(f"the free memory of {device} is not known: {_words(error)}") from error

    def try_lock(self, pid: int) -> None:
        """Lock a process and unlock it, to see whether this process may.

        Raises:
            CannotSuspendError: If it may not.
            ProcessLostError: If the process cannot be unlocked.
        """
        self._lock(pid)
        self.bring_back(pid)

    def take_off(self, pid: int) -> None:
        """Lock a process, and move its memory from the GPU to the host.

        Raises:
            CannotSuspendError: If that is not done; the process goes on.
            ProcessLostError: If it does not go on either.
        """
        self._lock(pid)
        try:
            self._process(pid).checkpoint()
        except Exception as error:
            self.bring_back(pid)
            raise CannotSuspendError(_words(error)) from error

    def bring_back(self, pid: int) -> None:
        """Move the memory of a process back if it has left, and unlock it; nothing if it runs.

        Raises:
            ProcessLostError: If it stays where it is. Another attempt would fail, too.
        """
        process = self._process(pid)
        try:
            state = process.state
            if state == "checkpointed":
                process.restore()
                state = process.state
            if state == "locked":
                process.unlock()
                state = process.state
        except Exception as error:
            raise ProcessLostError(_words(error)) from error
        if state != "running":
            raise ProcessLostError(f"the driver calls its state {state}")

    def _lock(self, pid: int) -> None:
        try:
            self._process(pid).lock(timeout_ms=LOCK_TIMEOUT)
        except Exception as error:  # it runs: a lock is taken as a whole, or not at all
            raise CannotSuspendError(_words(error)) from error


def _words(error: Exception) -> str:
    return " ".join(str(error).split()) or type(error).__name__
