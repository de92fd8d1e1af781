"""The device arbiter: one group at a time, in proportion to shares, also when processes die or hang."""

from __future__ import annotations

import math
import os
import random
import resource
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from lightning_core.core.protocols import DeviceLock
from lightning_core.node import arbiter_client, device_arbiter
from lightning_core.node.arbiter_client import STOPPED_AFTER, ArbiterClient, signs_file
from lightning_core.node.device_arbiter import DeviceArbiter
from tests.waiting import until


@pytest.fixture
def arbiter(tmp_path: Path) -> Iterator[DeviceArbiter]:
    made = DeviceArbiter(tmp_path / "t", hang_timeout=1e9)
    yield made
    made.close()


def next_holder(*waiting: tuple[ArbiterClient, float]) -> ArbiterClient:
    """Return the one of some clients, each with its share, that gets the next quantum."""
    return until(lambda: next((client for client, share in waiting if client.acquire(share, 0.0)), None))  # type: ignore[no-any-return]


def test_a_process_alone_never_waits(arbiter: DeviceArbiter) -> None:
    client = ArbiterClient(arbiter.path, quantum=0.0)
    assert isinstance(client, DeviceLock)
    assert client.acquire(0.1, 60.0)
    time.sleep(0.05)
    assert client.held
    assert not client.expired()
    client.close()


def test_a_second_process_waits_for_the_first(arbiter: DeviceArbiter) -> None:
    first, second = (ArbiterClient(arbiter.path, quantum=0.0) for _ in range(2))
    assert first.acquire(0.5, 60.0)
    assert not second.acquire(0.5, 0.05)
    until(first.expired)
    first.release(again=True, share=0.5)
    assert second.acquire(0.5, 60.0)
    assert not first.acquire(0.5, 0.05)
    second.release(again=False)
    assert first.acquire(0.5, 60.0)
    assert not first.expired()
    first.close()
    second.close()


def test_a_withdrawn_request_leaves_no_quantum_behind(arbiter: DeviceArbiter) -> None:
    """A grant that arrives while its request is withdrawn must not answer a later request."""
    first, second = (ArbiterClient(arbiter.path) for _ in range(2))
    assert first.acquire(0.5, 60.0)
    assert not second.acquire(0.5, 0.01)
    first.release(again=False)  # the grant is on its way to second ...
    time.sleep(0.1)
    second.release(again=False)  # ... which no longer wants it
    assert first.acquire(0.5, 60.0)
    assert not second.acquire(0.5, 0.1)
    first.close()
    second.close()


def test_a_quantum_is_charged_at_the_share_at_which_it_began(arbiter: DeviceArbiter) -> None:
    """A job that is held releases the device with share 0; that must not starve it later."""
    held, other = (ArbiterClient(arbiter.path, quantum=0.0) for _ in range(2))
    assert held.acquire(0.5, 60.0)
    assert not other.acquire(0.5, 0.1)
    held.release(again=False, share=0.0)
    assert other.acquire(0.5, 60.0)
    assert not held.acquire(0.5, 0.01)
    start = time.monotonic()
    while not held.held:
        time.sleep(0.01)
        other.release(again=True, share=0.5)
        next_holder((held, 0.5), (other, 0.5))
    assert time.monotonic() - start < 20.0  # a tenth of a second at the least share would be a hundred
    held.close()
    other.close()


@pytest.mark.parametrize("shares", [(0.5, 0.5), (0.7, 0.2, 0.1)])
def test_quanta_are_proportional_to_shares(
    arbiter: DeviceArbiter, clock: SimpleNamespace, shares: tuple[float, ...]
) -> None:
    """Clients that do nothing but take quanta, which begin and end as the test says; never two at once."""
    clients = [ArbiterClient(arbiter.path) for _ in shares]
    held = dict.fromkeys(clients, 0.0)
    holder, *others = clients
    assert holder.acquire(shares[0], 60.0)
    for client, share in zip(others, shares[1:], strict=True):
        assert not client.acquire(share, 0.0)
    until(lambda: len(arbiter._waiters()) == len(others))
    for _ in range(200):
        assert not any(
            client.acquire(share, 0.0) for client, share in zip(clients, shares, strict=True) if client is not holder
        )
        clock.now += 0.01
        held[holder] += 0.01
        holder.release(again=True, share=shares[clients.index(holder)])
        holder = next_holder(*zip(clients, shares, strict=True))
    for client, share in zip(clients, shares, strict=True):
        assert held[client] / sum(held.values()) == pytest.approx(share, abs=0.02)
        client.close()


@pytest.mark.parametrize("share", [math.inf, 1e308])
def test_a_share_beyond_one_does_not_starve_others(arbiter: DeviceArbiter, share: float) -> None:
    """Time divided by a share without bound costs nothing."""
    hostile, other = (ArbiterClient(arbiter.path, quantum=0.0) for _ in range(2))
    assert hostile.acquire(share, 60.0)
    assert not other.acquire(0.5, 0.05)
    for _ in range(20):
        hostile.release(again=True, share=share)
        if next_holder((hostile, share), (other, 0.5)) is other:
            break
        time.sleep(0.02)
    assert other.held
    hostile.close()
    other.close()


def test_a_process_has_a_limited_number_of_connections(arbiter: DeviceArbiter, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device_arbiter, "MAX_CONNECTIONS_PER_PROCESS", 3)
    clients = [ArbiterClient(arbiter.path) for _ in range(5)]
    until(lambda: len(arbiter._processes) >= 3)
    time.sleep(0.1)
    assert len(arbiter._processes) == 3
    assert clients[4].acquire(0.5, 60.0)  # it trains without time slicing
    for client in clients:
        client.close()


HOLD = """
import sys, time
from pathlib import Path
from lightning_core.node.arbiter_client import ArbiterClient
client = ArbiterClient(Path(sys.argv[1]))
client.acquire(0.5, 60.0, beside=7)
print("held", flush=True)
time.sleep(60)
"""


@pytest.fixture
def held_elsewhere(arbiter: DeviceArbiter) -> Iterator[subprocess.Popen[bytes]]:
    """A process that has the device for good, within turns of group 7."""
    process = subprocess.Popen([sys.executable, "-c", HOLD, str(arbiter.path)], stdout=subprocess.PIPE)
    assert process.stdout is not None
    assert process.stdout.readline() == b"held\n"
    yield process
    process.kill()
    process.wait()
    process.stdout.close()


@pytest.mark.parametrize("fault", [signal.SIGKILL, signal.SIGSTOP])
def test_a_dead_or_hung_holder_does_not_stop_the_others(
    arbiter: DeviceArbiter, held_elsewhere: subprocess.Popen[bytes], fault: signal.Signals
) -> None:
    arbiter._hang_timeout = 0.5 if fault == signal.SIGSTOP else 1e9
    client = ArbiterClient(arbiter.path)
    assert not client.acquire(0.5, 0.05)
    os.kill(held_elsewhere.pid, fault)
    assert client.acquire(0.5, 60.0)
    client.close()


@pytest.mark.parametrize("fault", [signal.SIGKILL, signal.SIGSTOP])
def test_a_dead_member_leaves_its_turn_and_a_hung_one_ends_it_for_all(
    arbiter: DeviceArbiter, held_elsewhere: subprocess.Popen[bytes], fault: signal.Signals
) -> None:
    hangs = fault == signal.SIGSTOP
    member, other = (ArbiterClient(arbiter.path, quantum=1e9) for _ in range(2))
    assert member.acquire(0.5, 60.0, beside=7)
    assert not other.acquire(0.5, 0.05)
    arbiter._hang_timeout = 0.5 if hangs else 1e9
    os.kill(held_elsewhere.pid, fault)
    if hangs:
        assert other.acquire(0.5, 60.0)
        assert member.expired()
        return
    until(lambda: len(arbiter._processes) == 2)
    assert not member.expired()
    assert not other.acquire(0.5, 0.05)
    member.release(again=True, share=0.5, beside=7)
    assert other.acquire(0.5, 60.0)


def test_a_process_that_was_passed_over_sees_it_when_it_recovers(arbiter: DeviceArbiter) -> None:
    """Although no other waits for it: it would train beside the next one for ever."""
    hung, other = (ArbiterClient(arbiter.path, quantum=1e9) for _ in range(2))
    assert hung.acquire(0.5, 60.0)
    arbiter._hang_timeout = 0.1
    assert other.acquire(0.5, 60.0)
    arbiter._hang_timeout = 1e9
    assert hung.expired()
    assert not other.expired()
    hung.release(again=True, share=0.5)
    assert not hung.acquire(0.5, 0.05)
    other.release(again=False)
    assert hung.acquire(0.5, 60.0)


# ------------------------------------------------------------------------------------------------ groups


def test_a_group_alone_trains_at_once_and_sends_nothing(arbiter: DeviceArbiter) -> None:
    pair = [ArbiterClient(arbiter.path, quantum=0.0) for _ in range(2)]
    for client, share in zip(pair, (1.0, 0.0), strict=True):
        assert client.acquire(share, 60.0, beside=7)
    time.sleep(0.05)
    assert not any(client.expired() for client in pair)
    pair[0].release(again=False)
    assert pair[0].acquire(1.0, 60.0, beside=7)
    assert not any(client.expired() for client in pair)


def test_without_a_number_two_processes_are_two_groups(arbiter: DeviceArbiter) -> None:
    first, second = (ArbiterClient(arbiter.path) for _ in range(2))
    assert first.acquire(0.5, 60.0, beside=0)
    assert not second.acquire(0.5, 0.05, beside=0)


def test_a_turn_that_ends_drains_before_another_group_has_one(arbiter: DeviceArbiter) -> None:
    first, late, other = (ArbiterClient(arbiter.path, quantum=0.0) for _ in range(3))
    second = ArbiterClient(arbiter.path, quantum=1e9)
    assert first.acquire(0.5, 60.0, beside=7)
    assert second.acquire(0.0, 60.0, beside=7)
    assert not other.acquire(0.5, 0.05)
    until(first.expired)
    assert not second.expired()
    first.release(again=True, share=0.5, beside=7)
    until(second.expired)  # although its own quantum is not over
    assert not first.acquire(0.5, 0.05, beside=7)
    assert not late.acquire(0.5, 0.0, beside=7)
    assert not other.acquire(0.5, 0.05)
    second.release(again=True, share=0.0, beside=7)
    assert other.acquire(0.5, 60.0)
    assert not any(client.acquire(0.5, 0.02, beside=7) for client in (first, second, late))
    until(other.expired)
    other.release(again=False)
    assert all(client.acquire(0.5, 60.0, beside=7) for client in (first, second, late))
    assert not second.expired()  # the turn is another one


def test_who_leaves_a_turn_leaves_the_others_in_it_and_may_come_back(arbiter: DeviceArbiter) -> None:
    first, second, other = (ArbiterClient(arbiter.path, quantum=1e9) for _ in range(3))
    assert first.acquire(0.5, 60.0, beside=7)
    assert second.acquire(0.0, 60.0, beside=7)
    assert not other.acquire(0.5, 0.05)
    first.release(again=False, share=0.5, beside=7)
    assert not other.acquire(0.5, 0.05)
    assert not second.expired()
    assert first.acquire(0.5, 60.0, beside=7)
    for client in (first, second):
        client.release(again=False, share=0.5, beside=7)
    assert other.acquire(0.5, 60.0)


def test_companions_come_together_and_part(arbiter: DeviceArbiter) -> None:
    first, second = (ArbiterClient(arbiter.path, quantum=0.0) for _ in range(2))
    assert first.acquire(0.5, 60.0)
    assert not second.acquire(0.5, 0.05, beside=7)
    until(first.expired)  # under its earlier number
    first.release(again=True, share=0.5, beside=7)
    assert all(client.acquire(0.5, 60.0, beside=7) for client in (first, second))
    assert not any(client.expired() for client in (first, second))
    first.release(again=False, share=0.5)
    assert not first.acquire(0.5, 0.05)
    until(second.expired)
    second.release(again=True, share=0.5)
    assert first.acquire(0.5, 60.0)
    assert not second.acquire(0.5, 0.05)


@pytest.fixture
def clock(arbiter: DeviceArbiter, monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    held = SimpleNamespace(now=0.0)
    monkeypatch.setattr(device_arbiter, "time", SimpleNamespace(monotonic=lambda: held.now))
    return held


Members = list[tuple[ArbiterClient, float]]


def turn(groups: dict[int, Members], clock: SimpleNamespace, seconds: float, holding: int | None = None) -> int:
    """Let the group that has its turn have it for some seconds; return that group.

    Args:
        groups: Members of each group, with their shares; a group below 0 has no number.
        clock: Clock of the arbiter.
        seconds: Duration of the turn.
        holding: The group whose turn it is, if all its members have been granted already.
    """

    def ask(group: int) -> bool:
        held = [client.held or client.acquire(share, 0.0, max(group, 0)) for client, share in groups[group]]
        return all(held)

    chosen: int = until(lambda: next((group for group in groups if ask(group)), None)) if holding is None else holding
    for group in groups.keys() - {chosen}:
        assert not any(client.held for client, _ in groups[group])
    clock.now += seconds
    for client, share in groups[chosen]:
        client.release(again=True, share=share, beside=max(chosen, 0))
    return chosen


def compete(arbiter: DeviceArbiter, groups: dict[int, Members]) -> None:
    """Let all members of some groups wait; the first group has its turn."""
    (number, first), *others = groups.items()
    for client, share in first:
        assert client.acquire(share, 60.0, max(number, 0))
    for group, members in others:
        for client, share in members:
            assert not client.acquire(share, 0.0, max(group, 0))
    until(lambda: len(arbiter._waiters()) == sum(len(members) for _, members in others))


@pytest.mark.parametrize(
    "shares",
    [
        {7: (0.3, 0.3), -1: (0.4,)},
        {7: (0.5, 0.0), -1: (0.5,)},
        {7: (0.5, math.nan), -1: (0.5,)},
        {7: (0.5, -math.inf), -1: (0.5,)},
        {7: (0.2, 0.1), 8: (0.3, 0.0, 0.0), -1: (0.4,)},
    ],
)
def test_a_group_has_as_much_of_the_device_as_its_shares_together(
    arbiter: DeviceArbiter, clock: SimpleNamespace, shares: dict[int, tuple[float, ...]]
) -> None:
    groups = {of: [(ArbiterClient(arbiter.path), share) for share in each] for of, each in shares.items()}
    compete(arbiter, groups)
    had = dict.fromkeys(groups, 0)
    for number in range(100):
        had[turn(groups, clock, 0.01, None if number else next(iter(groups)))] += 1
    for group, each in shares.items():
        assert had[group] / 100 == pytest.approx(sum(max(share, 0.0) for share in each if share == share), abs=0.03)


def test_a_companion_that_is_first_in_its_group_costs_it_seconds_not_turns(
    arbiter: DeviceArbiter, clock: SimpleNamespace
) -> None:
    """A second divided by no share would keep the group away for as long as others want the device."""
    companion, partner, other = (ArbiterClient(arbiter.path) for _ in range(3))
    alone: dict[int, Members] = {7: [(companion, 0.0)], -1: [(other, 0.5)]}
    compete(arbiter, alone)
    assert turn(alone, clock, 1.0, 7) == 7
    groups: dict[int, Members] = {7: [(companion, 0.0), (partner, 0.5)], -1: [(other, 0.5)]}
    assert not partner.acquire(0.5, 0.0, 7)
    until(lambda: len(arbiter._processes) == 3 and len(arbiter._waiters()) == 2)
    assert [turn(groups, clock, 0.4) for _ in range(4)] == [-1, -1, -1, 7]


def test_what_a_group_has_used_is_remembered_while_a_member_is_connected(
    arbiter: DeviceArbiter, clock: SimpleNamespace
) -> None:
    leaves, stays, comes, other = (ArbiterClient(arbiter.path) for _ in range(4))
    groups: dict[int, Members] = {7: [(leaves, 0.25), (stays, 0.25)], -1: [(other, 0.5)]}
    compete(arbiter, groups)
    assert turn(groups, clock, 1.0, 7) == 7
    leaves.close()
    until(lambda: len(arbiter._processes) == 3)
    groups[7] = [(stays, 0.25), (comes, 0.25)]
    assert not comes.acquire(0.25, 0.0, 7)
    until(lambda: len(arbiter._waiters()) == 2)
    assert [turn(groups, clock, 0.4) for _ in range(4)] == [-1, -1, -1, 7]


def test_time_alone_is_free(arbiter: DeviceArbiter, clock: SimpleNamespace) -> None:
    first, second, other = (ArbiterClient(arbiter.path) for _ in range(3))
    groups: dict[int, Members] = {7: [(first, 0.25), (second, 0.25)], -1: [(other, 0.5)]}
    for client, share in groups[7]:
        assert client.acquire(share, 60.0, 7)
    clock.now += 1e6
    assert not other.acquire(0.5, 0.0)
    until(arbiter._waiters)
    assert turn(groups, clock, 1.0, 7) == 7
    assert [turn(groups, clock, 1.0) for _ in range(4)] == [-1, 7, -1, 7]


def test_absence_earns_no_credit(arbiter: DeviceArbiter, clock: SimpleNamespace) -> None:
    pair, others = [ArbiterClient(arbiter.path) for _ in range(2)], [ArbiterClient(arbiter.path) for _ in range(2)]
    groups: dict[int, Members] = {-1: [(others[0], 0.25)], -2: [(others[1], 0.25)]}
    compete(arbiter, groups)
    turn(groups, clock, 1.0, -1)
    for _ in range(9):
        turn(groups, clock, 1.0)
    groups[7] = [(client, 0.25) for client in pair]
    for client in pair:
        assert not client.acquire(0.25, 0.0, 7)
    until(lambda: len(arbiter._waiters()) == 3)
    turns = [turn(groups, clock, 1.0) for _ in range(8)]
    assert turns.count(7) == 4


@pytest.mark.parametrize("dies", [False, True])
def test_who_leaves_a_group_takes_its_share_along(arbiter: DeviceArbiter, clock: SimpleNamespace, dies: bool) -> None:
    stays, leaves, other = (ArbiterClient(arbiter.path) for _ in range(3))
    groups: dict[int, Members] = {7: [(stays, 0.25), (leaves, 0.5)], -1: [(other, 0.75)]}
    compete(arbiter, groups)
    if dies:
        leaves.close()
    else:
        leaves.release(again=False, share=0.5)
    groups[7].pop()
    until(lambda: sum(process.holds for process in arbiter._processes) == 1)
    turns = [turn(groups, clock, 0.01, 7), *(turn(groups, clock, 0.01) for _ in range(39))]
    assert turns.count(7) == pytest.approx(10, abs=1)


def test_the_last_turn_of_a_process_that_dies_is_charged_to_no_other(
    arbiter: DeviceArbiter, clock: SimpleNamespace
) -> None:
    dies, first, second = (ArbiterClient(arbiter.path) for _ in range(3))
    compete(arbiter, {-1: [(dies, 0.3)], -2: [(first, 0.3)], -3: [(second, 0.3)]})
    clock.now += 10.0
    dies.close()
    groups: dict[int, Members] = {-2: [(first, 0.3)], -3: [(second, 0.3)]}
    assert sorted(turn(groups, clock, 1.0) for _ in range(4)) == [-3, -3, -2, -2]


def test_only_a_turn_that_does_not_end_is_passed_over(arbiter: DeviceArbiter, clock: SimpleNamespace) -> None:
    """However long the others have waited before it, and however often they say something meanwhile."""
    arbiter._hang_timeout = 1.0
    first, second = (ArbiterClient(arbiter.path, quantum=1e9) for _ in range(2))

    def looks() -> None:
        before = arbiter._beats
        until(lambda: arbiter._beats > before + 2)

    assert first.acquire(0.5, 60.0)
    clock.now += 100.0  # alone
    for holder, waiter in ((first, second), (second, first), (first, second)):
        assert not waiter.acquire(0.5, 0.0)
        until(arbiter._waiters)
        clock.now += 0.9
        looks()
        assert not holder.expired()
        holder.release(again=True, share=0.5)
        assert waiter.acquire(0.5, 60.0)
    assert not first.acquire(0.5, 0.0)
    for _ in range(2):
        clock.now += 0.6
        first.release(again=True, share=0.5)
        looks()
    assert second.expired()
    assert not second.acquire(0.5, 0.0)


@pytest.mark.parametrize("seed", range(2))
def test_two_groups_never_hold_the_device_at_once(arbiter: DeviceArbiter, seed: int) -> None:
    """Threads that join and leave groups, pause and give up as they like."""
    lock, stop = threading.Lock(), threading.Event()
    holders: dict[ArbiterClient, int] = {}
    faults: list[object] = []
    quanta = dict.fromkeys(range(4), 0)  # by the number of processes that held the device when one began

    def trains(number: int) -> None:
        chance, client = random.Random(10 * seed + number), ArbiterClient(arbiter.path, quantum=0.002)
        beside = 0
        while not stop.is_set():
            if chance.random() < 0.2:
                if client.held:
                    with lock:
                        del holders[client]
                beside = chance.choice((0, 7, 7, 8))
                client.release(again=False, share=0.5, beside=beside)
            if not client.held:
                if not client.acquire(0.25, chance.choice((0.0, 0.01, 1.0)), beside):
                    continue
                with lock:
                    holders[client] = beside
                    quanta[min(len(holders), 3)] += 1
                    if len(holders) > 1 and (len(set(holders.values())) > 1 or not beside):
                        faults.append(sorted(holders.values()))
            time.sleep(0.001 * chance.random())
            if client.expired():
                with lock:
                    del holders[client]
                client.release(again=True, share=0.25, beside=beside)
        with lock:
            holders.pop(client, None)
        client.close()

    threads = [threading.Thread(target=trains, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    until(lambda: min(quanta[count] for count in (1, 2, 3)) > 20 or faults)
    stop.set()
    for thread in threads:
        thread.join(30)
    assert not faults


def test_training_goes_on_without_an_arbiter(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    arbiter = DeviceArbiter(tmp_path / "t")
    client = ArbiterClient(arbiter.path, quantum=0.0)
    assert client.acquire(0.5, 1.0)
    arbiter.close()
    client.release(again=True, share=0.5)
    assert client.acquire(0.5, 1.0)
    assert not client.expired()
    assert "training continues without turns" in caplog.text
    client.close()
    never = ArbiterClient(tmp_path / "nowhere")
    assert never.acquire(0.5, 1.0)


ARBITER = """
import sys, time
from pathlib import Path
from lightning_core.node.device_arbiter import DeviceArbiter
arbiter = DeviceArbiter(Path(sys.argv[1]), hang_timeout=1e9)
print("up", flush=True)
time.sleep(600)
"""


@pytest.fixture
def apart(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    """An arbiter in a process of its own, at ``tmp_path / "t"``."""
    command = [sys.executable, "-c", ARBITER, str(tmp_path / "t")]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "up\n"
    yield process
    process.kill()
    process.wait()
    process.stdout.close()


@pytest.mark.promise("F35")
def test_training_goes_on_while_the_arbiter_is_stopped_and_takes_turns_again_after_it(
    apart: subprocess.Popen[str], tmp_path: Path
) -> None:
    said: list[str] = []
    first, second = (ArbiterClient(tmp_path / "t", quantum=0.0, tell=said.append) for _ in range(2))
    assert first.acquire(0.5, 60.0)
    assert not second.acquire(0.5, 0.05)
    os.kill(apart.pid, signal.SIGSTOP)
    until(lambda: Path(f"/proc/{apart.pid}/stat").read_text().rpartition(")")[2].split()[0] == "T")
    for _ in range(2):  # once it is known, no job waits for it any more
        for client in (first, second):
            began = time.monotonic()
            until(lambda one=client: one.acquire(0.5, 1.0), STOPPED_AFTER + 10.0)  # type: ignore[misc]
            waited = time.monotonic() - began
            client.release(again=True, share=0.5)
    assert waited < 0.5
    assert sum("has stopped" in words for words in said) == 2
    for client in (first, second):
        assert client.acquire(0.5, 1.0)
    os.kill(apart.pid, signal.SIGCONT)
    for client in (first, second):
        until(client.expired)  # neither keeps what it has taken meanwhile
        client.release(again=True, share=0.5)
    assert next_holder((first, 0.5), (second, 0.5)) in (first, second)
    assert first.held != second.held
    assert sum("arbiter works again" in words for words in said) == 2


@pytest.mark.promise("F35")
def test_what_was_taken_without_the_arbiter_is_released_when_it_works_again(
    arbiter: DeviceArbiter, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where no turn has ended since this process had one."""
    client = ArbiterClient(arbiter.path)
    assert client.acquire(0.5, 60.0)
    client.release(again=False)
    with monkeypatch.context() as patch:
        patch.setattr(client, "_looks_stopped", lambda: True)
        assert client.acquire(0.5, 60.0)
        assert not client.expired()
    assert client.expired()


@pytest.mark.promise("F35")
def test_a_long_turn_of_another_job_is_no_sign_that_the_arbiter_has_stopped(arbiter: DeviceArbiter) -> None:
    said: list[str] = []
    first, second = (ArbiterClient(arbiter.path, tell=said.append) for _ in range(2))
    assert first.acquire(0.5, 60.0)
    assert not second.acquire(0.5, 1.5 * STOPPED_AFTER)
    assert said == []


def test_time_in_which_this_process_stood_still_says_nothing_of_the_arbiter(
    arbiter: DeviceArbiter, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[str] = []
    client = ArbiterClient(arbiter.path, quantum=0.0, tell=said.append)
    assert client.acquire(0.5, 60.0)
    arbiter._show = lambda: None  # type: ignore[method-assign]
    for later in (1e3, 2e3):
        monkeypatch.setattr(arbiter_client, "time", SimpleNamespace(monotonic=lambda at=later: at))
        client.expired()
    assert said == []


def test_an_arbiter_that_is_started_again_does_not_shorten_the_file_that_others_read(tmp_path: Path) -> None:
    """To read what was cut off kills a process."""
    first = DeviceArbiter(tmp_path / "t")
    client = ArbiterClient(tmp_path / "t")
    assert client.acquire(0.5, 60.0)
    before = signs_file(tmp_path / "t").stat().st_ino
    second = DeviceArbiter(tmp_path / "t")
    assert signs_file(tmp_path / "t").stat().st_ino != before
    assert not client.expired()
    for one in (first, second):
        one.close()


def test_a_process_may_have_more_files_than_select_knows(arbiter: DeviceArbiter) -> None:
    kept, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(2048, most), most))
    files = [open(os.devnull) for _ in range(1100)]  # noqa: SIM115
    try:
        client = ArbiterClient(arbiter.path)
        assert client._socket is not None
        assert client._socket.fileno() > 1024
        assert client.acquire(0.5, 60.0)
        client.close()
    finally:
        for file in files:
            file.close()
        resource.setrlimit(resource.RLIMIT_NOFILE, (kept, most))


def test_only_the_user_can_connect(arbiter: DeviceArbiter) -> None:
    assert arbiter.path.stat().st_mode & 0o077 == 0
