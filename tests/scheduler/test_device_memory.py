"""Memory as a resource: no more jobs on a device than fit, trials of unknown ones, and those that ran out of it."""

from __future__ import annotations

from math import inf

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lightning_core.core.answers import End, Grant, Verdict
from lightning_core.core.codec import decode_event, encode_event
from lightning_core.core.commands import Cancel, Pause
from lightning_core.core.earlier_runs import EarlierRun
from lightning_core.core.events import EarlierRuns, ExitCause, Report, Submit, Tick, WorkerExited
from lightning_core.core.jobs import Capability, Job, OnHold
from lightning_core.core.plans import Plan
from lightning_core.core.reported import MemoryUse
from lightning_core.core.targets import BatchTarget
from lightning_core.scheduler.allocation import Allocator
from lightning_core.scheduler.scheduler import Scheduler
from lightning_core.scheduler.settings import Settings
from lightning_core.simulation.scenario import SimulatedJob
from lightning_core.simulation.simulation import Simulation
from tests.builders import job
from tests.examples import examples

GB = 10**9


class Driven:
    """A scheduler that is told what processes report; ``edf``, so that the deadline says who is first."""

    def __init__(self, *jobs: Job, devices: int = 1, memory: int | None = 10 * GB, policy: str = "edf") -> None:
        self.scheduler = Scheduler(Settings(policy, devices=devices, device_memory=memory, stay=0.0))
        self.now = 0.0
        self.numbers: dict[str, int] = {}
        self.scheduler.handle(Submit(jobs), 0.0)

    def grant(self, name: str) -> Grant:
        found = self.scheduler.directive(name)
        assert isinstance(found, Grant), found
        return found

    def reports(self, name: str, batches: int, peak: int | None = None, held: int | None = None) -> None:
        self.now += 1.0
        number = self.numbers[name] = self.numbers.get(name, 0) + 1
        use = None if peak is None else MemoryUse(peak, peak if held is None else held)
        of = self.scheduler.incarnation(name)
        self.scheduler.handle(
            Report(name, of, number, self.grant(name).version, batches, float(batches), memory=use), self.now
        )
        self.scheduler.check()

    def exits(self, name: str, cause: ExitCause, detail: str = "") -> None:
        self.now += 1.0
        self.numbers.pop(name, None)
        self.scheduler.handle(WorkerExited(name, self.scheduler.incarnation(name), cause, detail), self.now)
        self.scheduler.check()

    def tick(self, after: float = 1.0) -> None:
        self.now += after
        self.scheduler.handle(Tick(), self.now)
        self.scheduler.check()

    @property
    def on(self) -> dict[str, tuple[int, ...]]:
        """The devices of each job on which it may have a process."""
        return {name: grant.devices for name in self.scheduler.names(active=True)
                if (grant := self.grant(name)).devices}  # fmt: skip

    @property
    def launched(self) -> list[str]:
        return [placement.job for placement in self.scheduler.placements()]


def test_jobs_that_fit_stay_together_and_the_last_of_those_that_do_not_waits() -> None:
    pool = Driven(job("a", memory=4 * GB), job("b", memory=5 * GB), job("c", memory=3 * GB))
    assert pool.on == {"a": (0,), "b": (0,)}
    assert pool.grant("a").share == 1.0
    # Without a limit all three stay.
    assert set(
        Driven(job("a", memory=4 * GB), job("b", memory=5 * GB), job("c", memory=3 * GB), memory=None).on
    ) == set("abc")


def test_an_urgent_job_has_room_made_for_it_and_is_launched_once_the_other_has_left() -> None:
    pool = Driven(job("a", memory=6 * GB))
    pool.reports("a", 1)
    pool.scheduler.handle(Submit((job("urgent", 10.0, memory=6 * GB),)), pool.now)
    assert pool.grant("a").devices == ()
    assert str(pool.grant("a").reason) == "frees its memory for jobs ahead of it"
    assert pool.grant("urgent").share == 1.0
    assert pool.launched == []  # its memory is still there
    pool.exits("a", ExitCause.RELEASED)
    assert pool.launched == ["urgent"]


def test_a_job_that_fits_beside_one_that_leaves_is_launched_at_once() -> None:
    pool = Driven(job("a", memory=6 * GB), job("b", memory=3 * GB))
    pool.reports("a", 1)
    pool.scheduler.handle(Submit((job("urgent", 10.0, memory=5 * GB),)), pool.now)
    assert pool.on == {"urgent": (0,), "b": (0,)}
    assert pool.launched == []  # neither: 6 GB, 3 GB and 5 GB do not fit
    pool.exits("a", ExitCause.RELEASED)
    assert set(pool.launched) == {"urgent", "b"}
    small = Driven(job("a", memory=6 * GB))
    small.reports("a", 1)
    small.scheduler.handle(Submit((job("urgent", 10.0, memory=3 * GB),)), small.now)
    assert small.launched == ["a", "urgent"]


def test_what_has_been_measured_counts_and_the_last_leaves_if_it_is_too_much() -> None:
    pool = Driven(job("a", memory=4 * GB), job("b", memory=4 * GB))
    pool.reports("b", 0)
    pool.reports("a", 1, peak=7 * GB)
    assert pool.on == {"a": (0,)}
    pool.tick()
    assert pool.grant("b").devices == ()
    assert next(status.memory for status in pool.scheduler.status()) == 7 * GB


def test_a_process_that_has_more_than_a_device_was_said_to_have_comes_back_alone() -> None:
    pool = Driven(job("a"))
    pool.reports("a", 1, peak=12 * GB)
    pool.scheduler.handle(Submit((job("urgent", 10.0, memory=GB),)), pool.now)
    pool.exits("a", ExitCause.RELEASED)
    assert pool.on == {"urgent": (0,)}
    pool.reports("urgent", 1000)
    pool.exits("urgent", ExitCause.DONE)
    assert pool.on == {"a": (0,)}
    assert pool.grant("a").share == 1.0


def test_only_a_job_that_asks_for_a_share_lacks_memory() -> None:
    zeros = np.zeros(3, np.int64)
    plan = Plan(np.arange(3), np.array([0.0, 1.0, 0.0]), np.zeros(3), zeros, zeros, np.zeros((3, 2)), False)
    stays, launched = [True, False, False], [True] * 3
    allocator = Allocator(1, None, [(0,), (), ()], stays, [1] * 3, launched, memory=[0.9, 0.5, 0.5])
    allocator.allocate(plan)
    assert allocator.lacks_memory == [False, True, False]


def test_a_job_that_lacks_only_memory_says_so() -> None:
    pool = Driven(job("a", memory=8 * GB), job("b", memory=4 * GB), policy="uniform")
    assert pool.on == {"a": (0,)}
    assert str(pool.grant("b").reason) == "waiting for memory: it needs 3.73GiB of a device's 9.31GiB, and less is free"


def test_an_unknown_job_is_alone_for_a_trial_until_it_has_trained() -> None:
    pool = Driven(job("known", 2000.0, memory=2 * GB), job("new"))
    assert pool.on == {"new": (0,)}
    assert str(pool.grant("new").reason) == "alone on its device until it is known how much memory it needs"
    pool.reports("new", 0)
    assert pool.on == {"new": (0,)}
    pool.reports("new", 1, peak=3 * GB)
    assert pool.on == {"new": (0,), "known": (0,)}
    assert pool.grant("new").reason.code != "memory_trial"


def test_an_unknown_job_makes_no_job_leave_that_comes_before_it() -> None:
    pool = Driven(job("first", 10.0, memory=2 * GB), job("new"))
    assert pool.on == {"first": (0,)}
    assert Driven(job("first", 10.0, memory=2 * GB), job("new"), devices=2).on == {"first": (0,), "new": (1,)}


def test_earlier_runs_say_how_much_a_job_needs() -> None:
    pool = Driven(job("known", memory=2 * GB), job("new", 2000.0))
    assert pool.on == {"known": (0,)}
    run = EarlierRun("old", (10, 20), (2.0, 1.0), memory=5 * GB)
    event = EarlierRuns((run,), (("new", (0,)),))
    assert decode_event(encode_event(event)) == event
    pool.scheduler.handle(event, 1.0)
    assert pool.on == {"known": (0,), "new": (0,)}
    more = Driven(job("known", memory=6 * GB), job("new", 2000.0))
    more.scheduler.handle(event, 1.0)
    assert more.on == {"known": (0,)}


def test_a_job_that_needs_more_than_a_device_has_is_refused() -> None:
    pool = Driven(job("big", memory=11 * GB), job("a", memory=GB))
    end = pool.scheduler.directive("big")
    assert isinstance(end, End)
    assert (end.verdict, str(end.reason)) == (
        Verdict.CANCELLED, "needs 10.2GiB of memory, but the pool's devices have 9.31GiB"
    )  # fmt: skip
    assert pool.grant("a").share == 1.0


@pytest.mark.parametrize("memory", [10 * GB, None])
def test_a_job_that_ran_out_of_memory_comes_back_alone_until_it_is_past_that_batch(memory: int | None) -> None:
    pool = Driven(job("a", memory=4 * GB), job("b", 2000.0, memory=4 * GB), memory=memory)
    pool.reports("b", 1, peak=4 * GB)
    pool.reports("a", 7, peak=4 * GB)
    assert pool.on == {"a": (0,), "b": (0,)}
    pool.exits("a", ExitCause.OUT_OF_MEMORY, "CUDA out of memory")
    status = pool.scheduler.last("a")
    words = "CUDA out of memory; it resumes alone on its devices from batch 0 and repeats 7 batches"
    assert str(status.fault) == words
    assert pool.scheduler.last("b").fault is None  # it is not to blame
    pool.tick(5.0)
    assert pool.on == {"a": (0,)}
    assert pool.launched == []  # b is still there
    pool.exits("b", ExitCause.RELEASED)
    assert pool.launched == ["a"]
    pool.reports("a", 1, peak=4 * GB)  # not as far as before: it may need more
    assert pool.on == {"a": (0,)}
    pool.reports("a", 8, peak=5 * GB)
    pool.tick()
    assert pool.on == {"a": (0,), "b": (0,)}


def test_a_job_that_runs_out_of_memory_alone_again_and_again_is_over() -> None:
    pool = Driven(job("a", memory=GB))
    for _ in range(2):
        pool.reports("a", 3, peak=GB)
        pool.exits("a", ExitCause.OUT_OF_MEMORY, "out of memory")
        pool.tick(10.0)
        assert pool.launched == ["a"]
    pool.reports("a", 3, peak=GB)
    pool.exits("a", ExitCause.OUT_OF_MEMORY, "out of memory")
    end = pool.scheduler.directive("a")
    assert isinstance(end, End)
    assert str(end.reason) == "out of memory; retry limit reached (2)"
    # `restarts` limits these too.
    once = Driven(job("a", memory=GB, restarts=0))
    once.exits("a", ExitCause.OUT_OF_MEMORY, "out of memory")
    assert str(once.scheduler.last("a").reason) == "out of memory"


@pytest.mark.parametrize("on_hold", [OnHold.OFFLOAD, OnHold.SUSPEND])
def test_a_held_job_that_offloads_leaves_room_and_has_it_again_when_it_trains(on_hold: OnHold) -> None:
    offloads = job("a", memory=7 * GB, on_hold=on_hold)
    pool = Driven(offloads)
    pool.reports("a", 1, peak=7 * GB, held=GB)
    pool.scheduler.handle(Submit((job("urgent", 10.0, memory=8 * GB),)), pool.now)
    assert pool.on == {"a": (0,), "urgent": (0,)}
    assert (pool.grant("a").share, pool.grant("urgent").share) == (0.0, 1.0)
    # One that keeps its memory has to leave.
    keeps = Driven(job("a", memory=7 * GB))
    keeps.reports("a", 1, peak=7 * GB, held=GB)
    keeps.scheduler.handle(Submit((job("urgent", 10.0, memory=8 * GB),)), keeps.now)
    assert keeps.on == {"urgent": (0,)}
    # It cannot go on beside a job that stays.
    pool.reports("urgent", 1, peak=8 * GB)
    pool.scheduler.handle(Submit((job("more", 2000.0, memory=GB),)), pool.now)
    assert pool.on == {"a": (0,), "urgent": (0,), "more": (0,)}
    assert pool.grant("urgent").share == 1.0


def test_terms_and_reports_survive_being_written() -> None:
    submit = Submit((job("a", memory=4 * GB, on_hold=OnHold.OFFLOAD), job("b")))
    assert decode_event(encode_event(submit)) == submit
    assert "on_hold" not in encode_event(Submit((job("b"),)))
    report = Report("a", 1, 1, 1, 1, 1.0, memory=MemoryUse(3, 2))
    assert decode_event(encode_event(report)) == report


@pytest.mark.parametrize("use", [MemoryUse(0, 0), MemoryUse(2**51, 0), MemoryUse(5, 6), MemoryUse(5, -1)])
def test_a_report_of_impossible_memory_is_taken_without_it(use: MemoryUse) -> None:
    pool = Driven(job("a"))
    pool.scheduler.handle(Report("a", 1, 1, pool.grant("a").version, 5, 1.0, memory=use), 1.0)
    [status] = pool.scheduler.status()
    assert (status.batches, status.memory) == (5, None)


@pytest.mark.parametrize(("memory", "rule"), [(0, "memory must be at least 1 byte, got 0"), (2**51, "memory must be")])
def test_a_job_and_a_pool_check_their_memory(memory: int, rule: str) -> None:
    with pytest.raises(ValueError, match=rule):
        job("a", memory=memory)
    with pytest.raises(ValueError, match="device_memory must be 1 to"):
        Settings(device_memory=memory)


def test_state_is_restored_with_what_is_known_of_memory() -> None:
    pool = Driven(job("a", memory=4 * GB), job("b"), devices=2)
    pool.reports("a", 1, peak=5 * GB)
    pool.reports("b", 1, peak=6 * GB)
    pool.exits("b", ExitCause.OUT_OF_MEMORY)
    pool.scheduler.handle(Submit((job("urgent", 5.0, memory=9 * GB), job("other", 5.0, memory=9 * GB))), pool.now)
    again = Scheduler(pool.scheduler.settings)
    again.restore(pool.scheduler.state())
    assert again.state() == pool.scheduler.state()
    assert again.placements() == pool.scheduler.placements()


def played(one: Job) -> SimulatedJob:
    work = one.target.work
    assert work is not None
    cells = [*range(5, work, 5), work]
    return SimulatedJob(one, cells, [1.0] * len(cells), 100.0)


@pytest.mark.parametrize("policy", ["edf", "triage", "laira", "decor", "uniform"])
def test_all_jobs_end_under_every_policy_and_never_too_many_are_on_a_device(policy: str) -> None:
    jobs = [job(f"j{k}", memory=memory, on_hold=held) for k, (memory, held) in enumerate([
        (6 * GB, OnHold.KEEP), (6 * GB, OnHold.OFFLOAD), (None, OnHold.KEEP), (3 * GB, OnHold.KEEP),
        (10 * GB, OnHold.KEEP),
    ])]  # fmt: skip
    jobs.append(job("free", inf, memory=5 * GB))
    run = Simulation(Settings(policy, devices=2, device_memory=10 * GB, resident=6), [played(one) for one in jobs],
                     check=True).run()  # fmt: skip
    assert {one.verdict for one in run.summary.jobs} == {Verdict.MET}


# ------------------------------------------------------------------------------------------------- the allocation


@st.composite
def pools(draw: st.DrawFn) -> tuple[Allocator, Plan, list[float], list[float], set[int], list[tuple[int, ...]]]:
    n, devices = draw(st.integers(1, 6)), draw(st.integers(1, 3))
    parts = st.sampled_from([1e-6, 0.2, 0.34, 0.5, 0.6, 1.0])
    training = draw(st.lists(parts, min_size=n, max_size=n))
    held = [min(part, draw(parts)) for part in training]
    stays = draw(st.sets(st.integers(0, n - 1)))
    homes: list[tuple[int, ...]] = []
    used = [0.0] * devices
    for row in range(n):  # only what fits is there
        at = draw(st.sampled_from([None, *range(devices)]))
        if at is None or used[at] + training[row] > 1:
            homes.append(())
        else:
            used[at] += training[row]
            homes.append((at,))
    size = draw(st.lists(st.integers(1, devices), min_size=n, max_size=n))
    size = [1 if homes[row] else size[row] for row in range(n)]
    share = [1.0 if size[row] > 1 else draw(st.sampled_from([0.0, 0.3, 0.5, 1.0])) for row in range(n)]
    zeros = np.zeros(n, np.int64)
    order = np.array(draw(st.permutations(range(n))), np.int64)
    plan = Plan(order, np.array(share), np.zeros(n), zeros, zeros, np.zeros((n, 2)), draw(st.booleans()))
    allocator = Allocator(devices, None, homes, [row in stays for row in range(n)], size, [True] * n,
                          memory=training, held=held)  # fmt: skip
    return allocator, plan, training, held, stays, homes


@settings(max_examples=examples(300))
@given(case=pools())
def test_what_is_on_a_device_fits_into_its_memory(
    case: tuple[Allocator, Plan, list[float], list[float], set[int], list[tuple[int, ...]]],
) -> None:
    allocator, plan, training, held, stays, before = case
    before = list(before)
    share, homes = allocator.allocate(plan)
    for device in {device for home in homes for device in home}:
        there = [row for row, home in enumerate(homes) if device in home]
        total = sum(training[row] if share[row] else held[row] for row in there)
        assert total <= 1 + 1e-6, (device, there)
    first = int(plan.order[0])
    if plan.share[first] and not stays:  # the first job has its share if any room can be made
        assert share[first] > 0


def test_a_script_cannot_leave_and_what_it_has_counts() -> None:
    script = Job("s", 100.0, BatchTarget(10), device=0, can=frozenset({Capability.HOLD}), memory=20 * GB)
    pool = Scheduler(Settings("edf", device_memory=10 * GB))
    pool.handle(Submit((script,)), 0.0)
    assert isinstance(pool.directive("s"), End)  # more than the device has
    small = Driven(
        Job("s", 100.0, BatchTarget(10), device=0, can=frozenset({Capability.HOLD})), job("a", memory=2 * GB)
    )
    small.reports("s", 1, peak=9 * GB)
    assert small.on == {"s": (0,)}
    assert small.launched == []


def test_the_most_that_is_known_counts() -> None:
    for told, peaks in ((6 * GB, (4 * GB,)), (None, (6 * GB, 4 * GB)), (4 * GB, (6 * GB,))):
        pool = Driven(job("a", memory=told), job("b", 2000.0, memory=5 * GB))
        for number, peak in enumerate(peaks, start=1):  # each of a process of its own
            pool.reports("a", number, peak=peak)
            pool.exits("a", ExitCause.RELEASED)
        assert pool.on == {"a": (0,)}, (told, peaks)


def test_the_batch_in_which_it_ran_out_is_not_past_it() -> None:
    pool = Driven(job("a"), job("b", 2000.0, memory=GB))
    pool.reports("a", 7, peak=4 * GB)
    pool.exits("a", ExitCause.OUT_OF_MEMORY)
    pool.tick(5.0)
    pool.reports("a", 7, peak=4 * GB)
    pool.tick()
    assert pool.on == {"a": (0,)}
    pool.reports("a", 8)
    pool.tick()
    assert pool.on == {"a": (0,), "b": (0,)}


def test_a_job_that_trains_stays_placed_while_others_leave() -> None:
    pool = Driven(job("a", memory=6 * GB), job("b", memory=3 * GB))
    pool.reports("a", 1)
    pool.reports("b", 0)
    pool.scheduler.handle(Submit((job("urgent", 10.0, memory=5 * GB),)), pool.now)
    assert pool.on == {"urgent": (0,), "b": (0,)}
    assert pool.launched == ["b"]


def test_the_next_job_is_launched_once_the_process_of_one_that_has_ended_has_gone() -> None:
    pool = Driven(job("a", memory=6 * GB), job("b", 2000.0, memory=6 * GB))
    pool.reports("a", 1000)
    assert isinstance(pool.scheduler.directive("a"), End)
    assert (pool.on, pool.launched) == ({"b": (0,)}, [])
    pool.exits("a", ExitCause.DONE)
    assert pool.launched == ["b"]
    # One that crashed has gone already.
    crashed = Driven(job("a", memory=6 * GB), job("b", 2000.0, memory=6 * GB))
    crashed.reports("a", 1)
    crashed.exits("a", ExitCause.RAISED, "ValueError")
    assert crashed.launched == ["b"]


def test_a_process_that_takes_no_more_trains_on_beside_one_that_cannot_leave() -> None:
    script = Job("s", 2000.0, BatchTarget(1000), device=0, can=frozenset({Capability.HOLD}))
    pool = Driven(job("a", memory=2 * GB), script)
    pool.reports("a", 1)
    pool.reports("s", 1, peak=9 * GB)
    pool.tick()
    assert pool.grant("a").share == 1.0


def test_a_job_that_leaves_gives_back_what_it_has_kept() -> None:
    """Of three, the held one has offloaded: it frees 1 GB of its 7, so the next one leaves too."""
    plan = Plan(np.array([2, 1, 0]), np.array([0.0, 0.0, 1.0]), np.zeros(3), np.zeros(3, np.int64),
                np.zeros(3, np.int64), np.zeros((3, 2)), False)  # fmt: skip
    allocator = Allocator(1, None, [(0,), (0,), ()], [False] * 3, [1] * 3, [True] * 3, memory=[0.7, 0.3, 0.8],
                          held=[0.1, 0.3, 0.8])  # fmt: skip
    share, homes = allocator.allocate(plan)
    assert (share.tolist(), homes) == ([0.0, 0.0, 1.0], [(), (), (0,)])


def test_a_job_that_trains_beside_one_that_leaves_counts_with_all_that_it_takes() -> None:
    pool = Driven(job("c", 2000.0, memory=3 * GB))
    pool.reports("c", 0)
    jobs = job("a", memory=6 * GB, on_hold=OnHold.OFFLOAD), job("b", memory=2 * GB)
    pool.scheduler.handle(Submit(jobs), pool.now)
    pool.reports("a", 1, peak=6 * GB, held=GB)
    assert pool.on == {"a": (0,), "c": (0,)}  # the three do not fit
    pool.scheduler.handle(Pause("c", release=True), pool.now)
    assert pool.on == {"a": (0,), "b": (0,)}
    assert pool.launched == ["a"]  # nor while c leaves
    pool.exits("c", ExitCause.RELEASED)
    assert pool.launched == ["a", "b"]


def test_a_job_that_is_called_back_before_it_has_left_is_not_counted_twice() -> None:
    pool = Driven(job("a", memory=6 * GB))
    pool.reports("a", 1)
    pool.scheduler.handle(Submit((job("urgent", 10.0, memory=6 * GB),)), pool.now)
    assert pool.on == {"urgent": (0,)}
    pool.scheduler.handle(Cancel("urgent"), pool.now)
    assert pool.on == {"a": (0,)}
    pool.scheduler.handle(Submit((job("b", memory=3 * GB),)), pool.now)
    assert pool.launched == ["a", "b"]
