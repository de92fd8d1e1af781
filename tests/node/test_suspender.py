"""A process is taken off its GPU and brought back, whatever the driver says, and whichever process dies meanwhile."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from lightning_core.node.cuda_driver import LOCK_TIMEOUT, CannotSuspendError, CudaDriver
from lightning_core.node.suspender import MARGIN, Suspender
from lightning_core.node.suspender_client import Condition, Move, SuspenderClient, Whereabouts, suspender_of
from tests.node.stand_in_gpu import UUID, WORDS, StandInGpu, installed
from tests.waiting import until

GIB, ME = 2**30, os.getpid()
RUNNING, SUSPENDED, LOST = Condition.RUNNING, Condition.SUSPENDED, Condition.LOST


@pytest.fixture
def gpu() -> Iterator[StandInGpu]:
    """A GPU of 16 GiB, of which this process has 4."""
    made = StandInGpu(16 * GIB)
    made.on_gpu[ME] = 4 * GIB
    with installed(made):
        yield made


@pytest.fixture
def suspender(gpu: StandInGpu, tmp_path: Path) -> Iterator[Suspender]:
    made = Suspender(tmp_path / "s", silence=1e6)
    yield made
    made.close()


def ask(client: SuspenderClient, what: Move, size: int = 0) -> Whereabouts:
    return client.ask(what, 10.0, size)


def test_a_process_leaves_its_gpu_and_comes_back_in_the_order_of_the_driver(
    gpu: StandInGpu, suspender: Suspender
) -> None:
    client = SuspenderClient(suspender.path, UUID)
    assert ask(client, Move.TRY) == Whereabouts(RUNNING)
    assert gpu.names() == ["lock", "unlock"]
    gpu.calls.clear()
    assert ask(client, Move.OUT, 3 * GIB) == Whereabouts(SUSPENDED, "", 4 * GIB + MARGIN)
    assert (gpu.free, gpu.on_host) == (16 * GIB, {ME: 4 * GIB})
    assert ask(client, Move.STILL).condition is SUSPENDED
    assert ask(client, Move.BACK) == Whereabouts(RUNNING)
    assert (gpu.on_gpu, gpu.on_host) == ({ME: 4 * GIB}, {})
    assert gpu.calls == [(name, ME) for name in ("lock", "checkpoint", "restore", "unlock")]
    assert set(gpu.timeouts) == {LOCK_TIMEOUT}
    assert ask(client, Move.BACK) == Whereabouts(RUNNING)
    assert len(gpu.calls) == 4


def test_it_is_brought_back_only_where_there_is_room_because_the_driver_tries_once(
    gpu: StandInGpu, suspender: Suspender
) -> None:
    client = SuspenderClient(suspender.path, UUID)
    ask(client, Move.OUT)
    gpu.on_gpu[1] = 12 * GIB
    answer = ask(client, Move.BACK)
    assert answer.condition is SUSPENDED
    assert answer.why == "it needs 4.2 GiB of its GPU, of which 4.0 GiB are free"
    assert "restore" not in gpu.names()
    gpu.on_gpu[1] = 11 * GIB
    assert ask(client, Move.BACK) == Whereabouts(RUNNING)


def test_a_process_that_had_its_gpu_to_itself_needs_no_margin(gpu: StandInGpu, suspender: Suspender) -> None:
    gpu.on_gpu[ME] = gpu.size
    client = SuspenderClient(suspender.path, UUID)
    assert ask(client, Move.OUT) == Whereabouts(SUSPENDED, "", gpu.size)
    assert ask(client, Move.BACK) == Whereabouts(RUNNING)


@pytest.mark.parametrize("error", sorted(set(WORDS) - {"CUDA_ERROR_OUT_OF_MEMORY"}))
@pytest.mark.parametrize("what", [Move.TRY, Move.OUT])
def test_a_process_that_cannot_be_locked_goes_on(gpu: StandInGpu, suspender: Suspender, error: str, what: Move) -> None:
    """Among them a time that is over, and too few rights."""
    gpu.errors["lock"] = [error]
    client = SuspenderClient(suspender.path, UUID)
    answer = ask(client, what)
    assert answer.condition is RUNNING
    assert WORDS[error] in answer.why
    assert (gpu.names(), gpu.states[ME] if gpu.states else "running") == (["lock"], "running")
    assert ask(client, Move.OUT).condition is SUSPENDED  # nothing is left of the first attempt


@pytest.mark.parametrize("error", sorted(WORDS))
def test_a_process_that_cannot_be_copied_is_unlocked(gpu: StandInGpu, suspender: Suspender, error: str) -> None:
    gpu.errors["checkpoint"] = [error]
    answer = ask(SuspenderClient(suspender.path, UUID), Move.OUT)
    assert answer.condition is RUNNING
    assert WORDS[error] in answer.why
    assert (gpu.names(), gpu.states[ME]) == (["lock", "checkpoint", "unlock"], "running")


@pytest.mark.parametrize("error", sorted(WORDS))
@pytest.mark.parametrize("call", ["restore", "unlock"])
def test_a_process_that_cannot_be_restored_is_lost_and_not_tried_again(
    gpu: StandInGpu, suspender: Suspender, error: str, call: str
) -> None:
    client = SuspenderClient(suspender.path, UUID)
    ask(client, Move.OUT)
    gpu.errors[call] = [error]
    answer = ask(client, Move.BACK)
    assert answer.condition is LOST
    assert WORDS[error] in answer.why
    before = len(gpu.calls)
    for what in Move:
        assert ask(client, what) == answer
    assert len(gpu.calls) == before


def test_a_process_that_the_driver_has_failed_is_lost(gpu: StandInGpu, suspender: Suspender) -> None:
    gpu.errors["checkpoint"], gpu.fails = ["CUDA_ERROR_NOT_SUPPORTED"], True
    answer = ask(SuspenderClient(suspender.path, UUID), Move.OUT)
    assert answer == Whereabouts(LOST, "the driver calls its state failed")


def test_the_stand_in_never_restores_a_process_after_it_had_no_room(gpu: StandInGpu) -> None:
    """As the driver does: the rule that room is looked for first is tested against this."""
    driver = CudaDriver()
    driver.take_off(ME)
    gpu.on_gpu[1] = 13 * GIB
    for error in ("OUT_OF_MEMORY", "OPERATING_SYSTEM"):
        with pytest.raises(Exception, match=error):
            driver.bring_back(ME)
        del gpu.on_gpu[1]
        gpu.on_gpu[1] = 0


@pytest.mark.parametrize(
    ("missing", "begins", "device", "why"),
    [
        (["pynvml"], "CUDA_SUCCESS", UUID, r"this needs pynvml, which is not installed; run pip install .*'\.\[gpu\]'"),
        (["cuda.core"], "CUDA_SUCCESS", UUID, r"this needs cuda.core, which is not installed; run pip install"),
        (["cuda.bindings"], "CUDA_SUCCESS", UUID, r"this needs cuda.bindings, which is not installed; run pip install"),
        ([], "CUDA_ERROR_NO_DEVICE", UUID, "cuInit returns CUDA_ERROR_NO_DEVICE"),
        ([], "CUDA_SUCCESS", "MIG-7", "the free memory of MIG-7 is not known: Not Found"),
    ],
)
def test_what_is_missing_is_said_before_a_process_is_touched(
    tmp_path: Path, missing: list[str], begins: str, device: str, why: str
) -> None:
    gpu = StandInGpu(GIB)
    with installed(gpu, missing, begins):
        suspender = Suspender(tmp_path / "s")
        answer = ask(SuspenderClient(suspender.path, device), Move.TRY)
        suspender.close()
    assert answer.condition is RUNNING
    assert re.search(why, answer.why), answer.why
    assert gpu.calls == []


def test_the_driver_of_a_machine_without_a_gpu_says_so() -> None:
    """With whatever is installed here."""
    with pytest.raises(CannotSuspendError):
        CudaDriver()


def test_another_process_asks_for_itself(gpu: StandInGpu, suspender: Suspender) -> None:
    """And if it is killed while it is suspended, nothing is brought back."""
    code = f"""
import sys
from pathlib import Path
from lightning_core.node.suspender_client import Move, SuspenderClient
client = SuspenderClient(Path({str(suspender.path)!r}), {UUID!r})
for line in sys.stdin:
    print(client.ask(Move(line.strip()), 10.0, 7).condition, flush=True)
"""
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        gpu.on_gpu[process.pid] = GIB
        for what, condition in (("out", b"suspended"), ("back", b"running"), ("out", b"suspended")):
            process.stdin.write(f"{what}\n".encode())
            process.stdin.flush()
            assert process.stdout.readline().strip() == condition
        assert {pid for _, pid in gpu.calls} == {process.pid}
        assert ask(SuspenderClient(suspender.path, UUID), Move.BACK) == Whereabouts(RUNNING)  # this one never left
        process.kill()
    until(lambda: all(thread.name != "suspends one" for thread in threading.enumerate()))
    assert gpu.names() == ["lock", "checkpoint", "restore", "unlock", "lock", "checkpoint"]


def test_a_suspended_process_whose_connection_ends_is_brought_back_once_there_is_room(
    gpu: StandInGpu, suspender: Suspender
) -> None:
    client = SuspenderClient(suspender.path, UUID)
    ask(client, Move.OUT)
    gpu.on_gpu[1] = 13 * GIB
    client.close()
    until(lambda: not suspender._connections)
    assert gpu.states[ME] == "checkpointed"
    gpu.on_gpu[1] = 0
    until(lambda: gpu.states[ME] == "running")


def test_a_suspended_process_that_is_silent_is_brought_back_and_told(gpu: StandInGpu, tmp_path: Path) -> None:
    """A thread of it may wait in a call of CUDA with Python's lock."""
    suspender = Suspender(tmp_path / "s", silence=0.05)
    client = SuspenderClient(suspender.path, UUID)
    ask(client, Move.OUT)
    until(lambda: gpu.states[ME] == "running")
    assert ask(client, Move.STILL).why == "it said nothing for 0 s and was brought back"
    suspender.close()


def test_one_process_at_a_time_is_moved(gpu: StandInGpu, suspender: Suspender) -> None:
    """Two that do not fit together: what the first takes is not promised to the second."""
    first, second = (SuspenderClient(suspender.path, UUID) for _ in range(2))
    entered, go_on = threading.Event(), threading.Event()
    call = gpu.call

    def slow(name: str, pid: int, *, wants: str) -> None:
        entered.set()
        assert go_on.wait(10.0)
        call(name, pid, wants=wants)

    gpu.call = slow  # type: ignore[method-assign]
    one = threading.Thread(target=ask, args=(first, Move.OUT))
    one.start()
    assert entered.wait(10.0)
    other = threading.Thread(target=ask, args=(second, Move.TRY))
    other.start()
    assert gpu.calls == []
    go_on.set()
    one.join()
    other.join()
    assert gpu.names() == ["lock", "checkpoint", "lock"]  # of one process here, which is away by then


def test_the_end_of_the_suspender_ends_its_connections_and_restores_no_process(gpu: StandInGpu, tmp_path: Path) -> None:
    suspender = Suspender(tmp_path / "s")
    client = SuspenderClient(suspender.path, UUID)
    ask(client, Move.OUT)
    suspender.close()
    with pytest.raises(OSError, match=r".+"):
        ask(client, Move.BACK)
    assert gpu.states[ME] == "checkpointed"
    assert not suspender.path.exists()


def test_the_suspender_is_beside_the_arbiter() -> None:
    assert suspender_of(Path("/run/x/arbiter")) == Path("/run/x/suspend")
