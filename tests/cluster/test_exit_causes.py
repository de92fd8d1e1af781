"""Exit causes of trainings that end by an error."""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import pytest
import torch

from lightning_core.bundle.lightning_config import build
from lightning_core.core.events import ExitCause, WorkerExited
from lightning_core.core.targets import BatchTarget
from lightning_core.worker.assignment import Assignment
from lightning_core.worker.exit_causes import cause_of, origin, story
from lightning_core.worker.worker import Worker
from tests.tiny import Line

DATA = {"class_path": "tests.tiny.Points", "init_args": {}}
CLOSED = "[../third_party/gloo/gloo/transport/tcp/pair.cc:538] Connection closed by peer [127.0.0.1]:41231"


class NoFile(Line):
    """Opens a missing file."""

    def __init__(self) -> None:
        super().__init__()
        Path("/nowhere/weights").read_bytes()


class NoModule(Line):
    """Imports a missing module."""

    def __init__(self) -> None:
        super().__init__()
        import lc_nowhere  # type: ignore[import-not-found]  # noqa: F401


@pytest.mark.promise("R10")
@pytest.mark.parametrize(
    ("config", "cause", "words"),
    [
        ({"model": {"class_path": "tests.tiny.Line", "init_args": {"lrr": 1}}}, ExitCause.UNUSABLE, "lrr"),
        ({"model": {"class_path": "tests.tiny.Line", "init_args": {"lr": "fast"}}}, ExitCause.UNUSABLE, "fast"),
        ({"model": {"class_path": "lc_nowhere.Net"}}, ExitCause.UNUSABLE, "lc_nowhere"),
        ({"model": {"class_path": "tests.tiny.Missing"}}, ExitCause.UNUSABLE, "Missing"),
        (
            {"model": {"class_path": "tests.tiny.Line"}, "trainer": {"precision": "odd"}},
            ExitCause.UNUSABLE,
            "precision",
        ),
        ({"model": {"class_path": "tests.tiny.NoArguments"}}, ExitCause.RAISED, "cannot be built"),
        ({"model": {"class_path": "tests.cluster.test_exit_causes.NoFile"}}, ExitCause.RAISED, "/nowhere/weights"),
        ({"model": {"class_path": "tests.cluster.test_exit_causes.NoModule"}}, ExitCause.RAISED, "lc_nowhere"),
    ],
)
def test_errors_of_the_config_are_told_from_errors_of_its_code(
    config: dict[str, Any], cause: ExitCause, words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises((Exception, SystemExit)) as caught:
        build({"data": DATA, **config}, "cpu", tmp_path, pl.Callback())
    assert cause_of(caught.value, building=True) is cause
    assert words in story(caught.value) + capsys.readouterr().err


def test_a_circular_chain_of_causes_ends() -> None:
    def loop() -> None:
        try:
            raise ValueError("first")
        except ValueError as error:
            raise error from error

    with pytest.raises(ValueError, match="first") as caught:
        loop()
    assert origin(caught.value) is caught.value
    one, two = KeyError("one"), KeyError("two")
    one.__cause__, two.__cause__ = two, one
    assert origin(one) is two


def raised(error: BaseException, context: BaseException | None = None) -> BaseException:
    try:
        if context is None:
            raise error
        try:
            raise context
        except BaseException:
            raise error  # noqa: B904
    except BaseException as caught:
        return caught


@pytest.mark.promise("R10")
def test_a_worker_without_this_package_trains_no_job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is the worker's fault, which has a limit of its own, and not the job's."""
    missing = "lightning_core.callbacks.launched"
    monkeypatch.setitem(sys.modules, missing, None)
    monkeypatch.setattr(Worker, "__init__", lambda self: None)
    assignment = Assignment("a", 3, BatchTarget(1), {}, 10, "no-arbiter", str(tmp_path), (), "cpu")
    left = Worker()._train(assignment)  # type: ignore[call-arg]
    assert (left.job, left.incarnation, left.cause) == ("a", 3, ExitCause.BROKEN)
    assert left.detail.splitlines()[-1].startswith("ModuleNotFoundError: ")
    assert missing in left.detail


@pytest.mark.promise("R10", "R13", "F28", "F31")
@pytest.mark.parametrize(
    ("error", "context", "cause", "last"),
    [
        (ValueError("bad"), None, ExitCause.RAISED, "ValueError: bad"),
        (SystemExit(3), None, ExitCause.RAISED, "SystemExit: 3"),
        (KeyboardInterrupt(), None, ExitCause.RAISED, "KeyboardInterrupt: no message"),
        (RuntimeError("a shape is wrong"), None, ExitCause.RAISED, "RuntimeError: a shape is wrong"),
        (MemoryError(), None, ExitCause.OUT_OF_MEMORY, "OOM: MemoryError: no message"),
        (torch.cuda.OutOfMemoryError("CUDA out of memory."), None, ExitCause.OUT_OF_MEMORY,
         "OOM: OutOfMemoryError: CUDA out of memory."),
        (RuntimeError("CUDA error: out of memory"), None, ExitCause.OUT_OF_MEMORY,
         "OOM: RuntimeError: CUDA error: out of memory"),
        (OSError(errno.ENOMEM, "Cannot allocate memory"), None, ExitCause.OUT_OF_MEMORY,
         "OOM: OSError: [Errno 12] Cannot allocate memory"),
        (OSError(errno.ENOSPC, "No space left on device"), None, ExitCause.RAISED,
         "OSError: [Errno 28] No space left on device"),
        # It broke the collective in which it then cleaned up; and its code called it something else.
        (RuntimeError(CLOSED), torch.OutOfMemoryError("x"), ExitCause.OUT_OF_MEMORY, f"OOM: RuntimeError: {CLOSED}"),
        (ValueError("too large"), MemoryError(), ExitCause.OUT_OF_MEMORY, "OOM: ValueError: too large"),
        # Only cleaning up ran out of memory.
        (MemoryError(), ValueError("bad"), ExitCause.RAISED, "MemoryError: no message"),
        (
            RuntimeError(CLOSED),
            None,
            ExitCause.LOST,
            f"its process group broke, reported by rank 1 of 2: RuntimeError: {CLOSED}",
        ),
        (torch.distributed.DistBackendError("x"), None, ExitCause.LOST,
         "its process group broke, reported by rank 1 of 2: DistBackendError: x"),
        # Its own error broke the collective in which it then cleaned up.
        (RuntimeError(CLOSED), ValueError("bad"), ExitCause.RAISED, f"RuntimeError: {CLOSED}"),
        # The others left it, and its code called that something else.
        (ValueError("sync failed"), RuntimeError(CLOSED), ExitCause.LOST,
         "its process group broke, reported by rank 1 of 2: ValueError: sync failed"),
    ],
)  # fmt: skip
def test_the_exit_cause_of_each_error(
    error: BaseException, context: BaseException | None, cause: ExitCause, last: str
) -> None:
    caught = raised(error, context)
    assert cause_of(caught, building=False) is cause
    assert story(caught, 1, 2).splitlines()[-1] == last


@pytest.mark.promise("F28")
@pytest.mark.parametrize("building", [False, True])
@pytest.mark.parametrize("allocate", [lambda: bytearray(2**60), lambda: torch.empty(2**58, dtype=torch.uint8)])
def test_more_memory_than_there_is_has_a_cause_of_its_own(building: bool, allocate: Callable[[], object]) -> None:
    with pytest.raises((MemoryError, RuntimeError)) as caught:
        allocate()
    assert cause_of(caught.value, building=building) is ExitCause.OUT_OF_MEMORY
    assert story(caught.value).splitlines()[-1].startswith("OOM: ")


def test_a_process_that_is_lost_is_reported_with_its_cause_before_it_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    """As one that was suspended and does not come back."""

    class EndedError(BaseException):
        """In place of the end of the process."""

    def end(code: int) -> None:
        raise EndedError(code)

    told: list[Any] = []
    worker: Any = Worker.__new__(Worker)
    worker._report = lambda _, left: told.append(left)
    monkeypatch.setattr(os, "_exit", end)
    assignment: Any = type("Given", (), {"job": "a", "incarnation": 3})()
    for more, cause in (((), ExitCause.HUNG), ((ExitCause.LOST,), ExitCause.LOST)):
        with pytest.raises(EndedError):
            worker._give_up(assignment, "why", *more)
        assert told.pop() == WorkerExited("a", 3, cause, "why")
