"""Runs functions in forks of a process that has imported all that a training needs: a training begins within 0.1 s.

Each run has a time limit. A process that is still there then says where each of its threads is, and is killed.
"""

from __future__ import annotations

import atexit
import faulthandler
import gc
import importlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, NoReturn, Self

from lightning_core.worker.process_group import free_port
from tests.conftest import ROOT
from tests.matrix import collectives
from tests.matrix.collectives import Collective

# Seconds that a process which has run for too long has to say where it is.
LAST_WORDS = 2.0
# What runs in forks is imported once, not in each of hundreds.
IMPORTED = (
    "lightning.pytorch", "torchmetrics", "lightning_core.callbacks", "lightning_core.callbacks.launched",
    "tests.matrix.training", "tests.matrix.odd_machines", "tests.callbacks.test_unlike_ranks",
    "tests.callbacks.test_others_code", "tests.callbacks.test_rank_watch", "tests.sharded",
    "torch.distributed._tensor.experimental", "torch.distributed.algorithms.ddp_comm_hooks",
    "torch.distributed.checkpoint.state_dict",
)  # fmt: skip


class Ended(NamedTuple):
    """How one process of a run has ended."""

    code: int | None
    """Its exit code; None if it had to be killed."""
    value: Any
    """What the function has returned; None if it did not return."""
    output: str
    """What it has printed and, if it had to be killed, where its threads were."""
    collectives: list[Collective]


class Forks:
    """A process that forks, and this one's connection to it."""

    def __enter__(self) -> Self:
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT), "PYTHONWARNINGS": "ignore"}
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.matrix.forks"],
            env=environment, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()

    def run(
        self,
        function: str,
        *args: Any,
        ranks: int = 1,
        limit: float = 60.0,
        environment: Mapping[str, str] | None = None,
    ) -> list[Ended]:
        """Run a function in new processes, and return how each has ended.

        Args:
            function: Module and name of the function.
            args: Its arguments, plain data.
            ranks: Number of processes. Several find the place to meet in their environment, as under torchrun.
            limit: Seconds that they may take.
            environment: Further environment variables.
        """
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with tempfile.TemporaryDirectory(prefix="lc-") as name:
            asked = [function, list(args), ranks, limit, dict(environment or {}), name]
            self._process.stdin.write(json.dumps(asked) + "\n")
            self._process.stdin.flush()
            codes = json.loads(self._process.stdout.readline())
            return [_ended(Path(name), rank, code) for rank, code in enumerate(codes)]


def _ended(folder: Path, rank: int, code: int | None) -> Ended:
    value, output = folder / f"value-{rank}", (folder / f"output-{rank}").read_text(errors="replace")
    told = json.loads(value.read_text()) if value.exists() else None
    return Ended(code, told, output, collectives.read(folder / f"collectives-{rank}"))


def _serve() -> None:
    for module in IMPORTED:
        importlib.import_module(module)
    import torch

    torch.set_num_threads(1)
    gc.collect()
    gc.freeze()  # what is imported stays, and is shared with the forks
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    for line in sys.stdin:
        function, args, ranks, limit, environment, name = json.loads(line)
        port = free_port() if ranks > 1 else 0
        children = {}
        for rank in range(ranks):
            if (child := os.fork()) == 0:
                _exit(_run(function, args, rank, ranks, port, environment, Path(name)))
            children[child] = rank
        codes = _wait(children, limit)
        answers.write(json.dumps([codes[rank] for rank in range(ranks)]) + "\n")


def _run(
    function: str, args: list[Any], rank: int, ranks: int, port: int, environment: dict[str, str], folder: Path
) -> int:
    os.setsid()
    output = os.open(folder / f"output-{rank}", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    for stream in (1, 2):
        os.dup2(output, stream)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    faulthandler.register(signal.SIGUSR1, file=output, all_threads=True)
    os.environ |= environment
    tempfile.tempdir = None  # which may be another one there
    if ranks > 1:
        os.environ |= {
            "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "RANK": str(rank), "WORLD_SIZE": str(ranks),
            "LOCAL_RANK": str(rank), "LOCAL_WORLD_SIZE": str(ranks), "GROUP_RANK": "0",
            "TORCHELASTIC_RUN_ID": str(port), "GLOO_SOCKET_IFNAME": "lo",
        }  # fmt: skip
        collectives.record(folder / f"collectives-{rank}")
    module, _, called = function.partition(":")
    try:
        value = getattr(importlib.import_module(module), called)(*args)
        (folder / f"value-{rank}").write_text(json.dumps(value))
    except SystemExit as error:
        return error.code if isinstance(error.code, int) else int(error.code is not None)
    except BaseException:
        traceback.print_exc()
        return 1
    return 0


def _exit(code: int) -> NoReturn:
    """End as an interpreter does, but for taking its modules down, which takes a second."""
    shutdown: Any = threading._shutdown  # type: ignore[attr-defined]
    shutdown()
    atexit._run_exitfuncs()
    try:
        for stream in filter(None, (sys.stdout, sys.stderr)):
            stream.flush()
    except OSError:
        code = code or 120
    os._exit(code)


def _wait(children: dict[int, int], limit: float) -> dict[int, int | None]:
    """Wait for processes; kill those that take too long."""
    codes: dict[int, int | None] = {}
    until, asked = time.monotonic() + limit, False
    while len(codes) < len(children):
        pid, status = os.waitpid(-1, os.WNOHANG)
        if pid:
            codes[children[pid]] = os.waitstatus_to_exitcode(status)
            continue
        time.sleep(0.005)
        if time.monotonic() < until:
            continue
        left = [child for child, rank in children.items() if rank not in codes]
        if not asked:
            asked, until = True, time.monotonic() + LAST_WORDS
            for child in left:
                os.kill(child, signal.SIGUSR1)
            continue
        for child in left:
            os.killpg(child, signal.SIGKILL)
            os.waitpid(child, 0)
            codes[children[child]] = None
    return codes


if __name__ == "__main__":
    _serve()
