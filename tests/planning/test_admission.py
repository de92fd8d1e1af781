"""Reservations of devices: nothing is oversold, and every kept job ends in time."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lightning_core.core.speedup import SpeedUp
from lightning_core.planning.admission import admit
from lightning_core.planning.backfill import backfill, end_time
from lightning_core.planning.free_devices import FreeDevices
from lightning_core.planning.reservations import (
    OPTIMISM,
    Demand,
    Reservation,
    next_change,
    optimistic_throughputs,
    reserve,
    reserve_fewest,
)
from tests.examples import examples


def need(work: float, end: float, *rates: float, **more: float) -> Demand:
    """Return the demand of a job with throughputs on 1, 2, 4, ... devices."""
    return Demand(work, end, tuple(2**k for k in range(len(rates))), rates, **more)  # type: ignore[arg-type]


def stretches(laid: Reservation | None) -> Any:
    return None if laid is None else [tuple(stretch) for stretch in laid.segments]


@st.composite
def needs(draw: st.DrawFn, devices: int) -> list[Demand | None]:
    """Jobs of any work and speed-up, some of which hold devices, as many as there are."""
    free, several = devices, []
    for _ in range(draw(st.integers(1, 8))):
        sizes = sorted(draw(st.sets(st.integers(1, devices), min_size=1, max_size=4)))
        rate, rates = draw(st.floats(0.1, 10)), []
        for _ in sizes:
            rates.append(rate)
            rate *= draw(st.floats(1.05, 2.5))
        end, holds = draw(st.floats(0.5, 200)), 0
        if fitting := [size for size in sizes if size <= free]:
            holds = draw(st.sampled_from([0, *fitting]))
            free -= holds
        resize = draw(st.sampled_from([0.0, 1.0, 30.0]))
        several.append(
            Demand(
                draw(st.floats(0.1, 500)),
                end,
                tuple(sizes),
                tuple(rates),
                latest=end * draw(st.sampled_from([1.0, 1.1])),
                weight=draw(st.sampled_from([1.0, 1.0, 3.0])),
                held=float(holds),
                arrival_delay=draw(st.sampled_from([0.0, 5.0])) if holds else 0.0,
                start_seconds=draw(st.sampled_from([0.0, resize])),
                resize_seconds=resize,
                protected_seconds=5.0 * resize,
                max_lateness=draw(st.sampled_from([0.0, 2.0])) if holds else 0.0,
                shrink_margin=draw(st.sampled_from([0.0, 1.0])) if holds else 0.0,
                may_shrink=draw(st.booleans()),
                min_saving=draw(st.sampled_from([0.0, 0.1])),
            )
        )
    return [one if draw(st.integers(0, 9)) else None for one in several]


def done_by(job: Demand, laid: Reservation) -> float:
    """Return the batches that a job does in its reservation, computed independently."""
    work, before, wait, last = 0.0, job.held, job.arrival_delay, 0.0
    first = True
    for begin, end, devices in laid.segments:
        assert begin < end
        assert begin >= last - 1e-9
        if begin > last + 1e-9 and before:
            before, wait, first = 0.0, 0.0, False
        if devices != before:
            wait = (
                wait + job.resize_seconds
                if before
                else (job.start_seconds if first and not job.held else job.resize_seconds)
            )
        first = False
        rate = job.throughputs[job.sizes.index(int(devices))]
        work += max(end - begin - wait, 0.0) * rate
        wait = max(wait - (end - begin), 0.0)
        before, last = devices, end
    return work


@given(data=st.data())
@settings(max_examples=examples(75), deadline=None)
def test_no_device_is_oversold_and_each_kept_job_ends_in_time(data: st.DataObject) -> None:
    devices = data.draw(st.sampled_from([1, 4, 16]))
    jobs = data.draw(needs(devices))
    hopeless = data.draw(st.sets(st.integers(0, len(jobs) - 1)))
    laid, free = admit(jobs, devices, 0.0, hopeless)
    assert min(free.devices) >= -1e-6
    taken = FreeDevices(0.0, devices)
    for job, on in zip(jobs, laid, strict=True):
        if on is None:
            continue
        assert job is not None
        for begin, end, size in on.segments:
            assert size in job.sizes
            taken.take(begin, end, size)
        assert on.end <= max(job.end + job.max_lateness, job.latest) + 1e-6
        assert on.end == pytest.approx(on.segments[-1].end)
        assert done_by(job, on) == pytest.approx(job.work, rel=1e-6, abs=1e-6)
        assert on.device_seconds == pytest.approx(sum((end - begin) * size for begin, end, size in on.segments))
    assert min(taken.devices) >= -1e-6
    for job, on in zip(jobs, laid, strict=True):  # a single job is kept whenever that is possible
        if job is not None and on is None and sum(one is not None for one in jobs) == 1:
            assert reserve_fewest(job, FreeDevices(0.0, devices)) is None


@given(data=st.data())
@settings(max_examples=examples(50), deadline=None)
def test_backfill_offers_spare_devices_once(data: st.DataObject) -> None:
    devices, grow = data.draw(st.sampled_from([1, 4, 16])), data.draw(st.booleans())
    jobs = data.draw(needs(devices))
    laid, free = admit(jobs, devices, 0.0)
    untried = {row for row, job in enumerate(jobs) if job is not None and data.draw(st.booleans())}
    sizes = backfill(jobs, laid, free, untried, grow=grow, min_payback=5.0)
    assert sum(sizes) <= devices
    for row, (job, on, size) in enumerate(zip(jobs, laid, sizes, strict=True)):
        if job is None:
            assert size == 0
        elif on is not None:
            assert size in (0, *job.sizes)
            assert size >= on.devices_at(0.0)
            if not grow and row not in untried:
                assert size == on.devices_at(0.0)
        elif size:  # a late job gets only devices on which it may still end in time
            assert any(end_time(job, n, 0.0) <= max(job.end, job.latest) for n in job.sizes)


# --------------------------------------------------------------------------------------------------------- one job


@pytest.mark.parametrize(
    ("job", "expected"),
    [
        (need(100, 100, 1, 1.9, 3), [(0, 100, 1)]),  # one device is enough
        (need(101, 100, 1, 1.9, 3), [(0, 101 / 1.9, 2)]),
        (need(300, 100, 1, 1.9, 3), [(0, 100, 4)]),
        (need(301, 100, 1, 1.9, 3), None),
        (need(95, 100, 1, 1.9, start_seconds=5), [(0, 100, 1)]),  # its start-up time counts
        (need(96, 100, 1, 1.9, start_seconds=5), [(0, 5 + 96 / 1.9, 2)]),
        (
            need(90, 100, 1, 1.9, held=1, arrival_delay=10, resize_seconds=20),
            [(0, 100, 1)],
        ),  # ... and until it is there
        (need(90, 100, 1, 1.9, held=2, resize_seconds=20), [(0, 90 / 1.9, 2)]),  # 110 s on one
        (need(80, 100, 1, 1.9, held=2, resize_seconds=20), [(0, 100, 1)]),  # as soon as fewer devices suffice
        (
            need(80, 100, 1, 1.9, held=2, resize_seconds=20, shrink_margin=0.1),
            [(0, 80 / 1.9, 2)],
        ),  # not just barely
        (need(80, 100, 1, 1.9, held=2, resize_seconds=20, may_shrink=False), [(0, 80 / 1.9, 2)]),
        (
            need(80, 100, 1, 1.9, held=2, resize_seconds=20, arrival_delay=1),
            [(0, 1 + 80 / 1.9, 2)],
        ),  # it has not arrived yet
        (
            need(80, 100, 1, 1.9, held=2, resize_seconds=20, min_saving=0.2),
            [(0, 80 / 1.9, 2)],
        ),  # 100 instead of 84 device-seconds
        (
            need(102, 100, 1, 1.9, held=1, resize_seconds=1, max_lateness=2),
            [(0, 102, 1)],
        ),  # a little lateness is not worth a resize
        (
            need(111, 100, 1, 1.9, latest=110, held=1, resize_seconds=45, max_lateness=2),
            [(0, 45 + 111 / 1.9, 2)],
        ),  # but not after its latest end
        (
            need(104, 100, 1, 2, held=1, resize_seconds=1, may_postpone=False),
            [(0, 1 + 104 / 2, 2)],
        ),  # at once, as it uses its reserve
        (
            need(110, 50, 1, 2, latest=100, held=1, resize_seconds=1),
            [(0, 1 + 110 / 2, 2)],
        ),  # the same where only its latest end is in reach
        (
            need(104, 100, 1, 2, held=1, resize_seconds=1),
            [(0, 94, 1), (94, 100, 2)],
        ),  # a little more is needed in the end
        (need(150, 100, 1, 2, held=1, resize_seconds=1), [(0, 76, 2)]),  # much more at once
        (need(10.8, 10, 1, 2, held=1, resize_seconds=1), [(0, 6.4, 2)]),
        (
            need(10.8, 10, 1, 2, held=1, resize_seconds=1, min_dwell=2),
            [(0, 7.2, 1), (7.2, 10, 2)],
        ),  # less than min_dwell
        (need(101, 100, 1, 1.9, latest=110), [(0, 101 / 1.9, 2)]),
        (need(105, 100, 1, latest=110), [(0, 105, 1)]),  # its safety margin is used up
    ],
)
def test_reservation_of_a_single_job(job: Demand, expected: list[tuple[float, float, float]] | None) -> None:
    laid = reserve_fewest(job, FreeDevices(0.0, 4))
    if expected is None:
        assert laid is None
    else:
        assert [pytest.approx(one) for one in expected] == stretches(laid)


def test_a_job_uses_fewer_devices_while_the_others_hold_theirs() -> None:
    free = FreeDevices(0.0, 4)
    free.take(0, 50, 3)
    assert stretches(reserve(need(150, 100, 1, 1.9, 3), free, 2, 100)) == [
        (0, 50, 1),
        (50, pytest.approx(50 + 100 / 3), 4),
    ]
    # A job that has not begun waits if that takes less: it needs one restart less.
    job = need(150, 125, 1, 1.2, 3, start_seconds=20, resize_seconds=20)
    assert stretches(reserve_fewest(job, free)) == [(50, pytest.approx(120), 4)]
    assert stretches(reserve(job, free, 2, 125)) == [(0, 50, 1), (50, pytest.approx(110), 4)]


def test_a_resize_that_costs_more_than_it_saves_is_not_planned() -> None:
    free = FreeDevices(0.0, 2)
    free.take(0, 10, 1)
    free.take(20, 200, 1)  # two devices are free for 10 s alone
    job = need(100, 200, 1, 1.9, held=1, resize_seconds=6)
    assert stretches(reserve(job, free, 1, 200)) == [(0, 100, 1)]
    assert stretches(reserve(replace(job, resize_seconds=1.0), free, 1, 200)) == [
        (0, 10, 1),
        (10, 20, 2),
        (20, pytest.approx(93.9), 1),
    ]


def test_a_share_of_a_device_is_reserved_without_gaps() -> None:
    free = FreeDevices(0.0, 1)
    free.take(10, 20, 0.5)
    job = Demand(10.0, 40.0, (1,), (1.0,), share=0.4)
    assert stretches(reserve_fewest(job, free)) == [(0, 40, 0.4)]
    assert stretches(reserve_fewest(replace(job, share=0.6), free)) == [(0, 10, 1)]  # else it is planned as a whole
    assert free.min_until(10.0) == 1.0
    assert free.min_between(5.0, 15.0) == 0.5
    assert free.copy().devices == free.devices


def test_useful_sizes_are_faster_than_every_smaller_one() -> None:
    assert SpeedUp((1, 2, 4, 8), (10.0, 9.0, 12.0, 12.0)).useful() == ((1, 4), (10.0, 12.0))
    assert SpeedUp((2,), (1.0,)).useful() == ((2,), (1.0,))


@pytest.mark.parametrize(
    ("job", "when"),
    [
        (need(80, 100, 1), math.inf),  # it has only one size
        (need(140, 100, 1, 2, start_seconds=1, resize_seconds=1), 43.0),  # it has not started yet
        (need(180, 100, 1, 2, held=1), 80.0),  # more at once, and then one again
        (need(104, 100, 1, 2, held=1, resize_seconds=1), 94.0),  # more in the end
        (need(140, 100, 1, 2, held=2, resize_seconds=1), 41.0),  # after 41 s 58 batches are left, and 58 s on one
        (need(140, 100, 1, 2, held=2, resize_seconds=1, arrival_delay=2, shrink_margin=1), 46.0),
        (need(80, 100, 1, 2, held=2, resize_seconds=1, may_shrink=False), math.inf),  # it could have fewer already
    ],
)
def test_the_next_change_is_when_another_size_suffices(job: Demand, when: float) -> None:
    laid = reserve_fewest(job, FreeDevices(0.0, 4))
    assert laid is not None
    assert next_change(job, laid, 0.0) == pytest.approx(when)
    if when < math.inf and job.held == 2:
        then = replace(job, work=job.work - 2 * (when - job.arrival_delay), end=job.end - when, arrival_delay=0.0)
        just_before = replace(then, work=then.work + 0.01)
        assert [reserve_fewest(one, FreeDevices(0.0, 4)).devices_at(0.0) for one in (then, just_before)] == [1, 2]  # type: ignore[union-attr]


def test_the_next_change_is_when_a_delayed_reservation_begins() -> None:
    free = FreeDevices(0.0, 1)
    free.take(0.0, 30.0, 1.0)
    laid = reserve_fewest(need(50, 100, 1), free)
    assert laid is not None
    assert next_change(need(50, 100, 1), laid, 0.0) == 30.0


def test_untried_sizes_are_estimated_optimistically_below_larger_ones() -> None:
    speed = SpeedUp((1, 2, 3))
    for _ in range(3):
        speed.observe(3.0, 30, 1.0)
    sizes, rates = speed.useful()
    most = 0.98 * rates[2]
    assert optimistic_throughputs(speed, sizes, rates) == pytest.approx(
        (OPTIMISM * rates[0], min(OPTIMISM * rates[1], most), rates[2])
    )
    assert optimistic_throughputs(SpeedUp((1, 2), (5.0, 6.0)), (1, 2), (5.0, 6.0)) == (5.0, 6.0)


# ------------------------------------------------------------------------------------------------------- several


def kept(jobs: list[Demand | None], devices: int, hopeless: tuple[int, ...] = ()) -> list[float | None]:
    """Return the devices that each job has now; None if it is not kept."""
    laid, _ = admit(jobs, devices, 0.0, hopeless)
    return [None if on is None else on.devices_at(0.0) for on in laid]


def test_the_earliest_deadline_is_reserved_first() -> None:
    assert kept([need(100, 100, 1), need(50, 50, 1), need(150, 200, 1)], 1) == [None, 1, 0]
    assert kept([need(100, 150, 1), need(50, 50, 1), None], 1) == [0, 1, None]


def test_the_job_with_the_most_work_for_its_weight_is_dropped() -> None:
    long, short = need(100, 100, 1), need(60, 110, 1)
    assert kept([long, short], 1) == [None, 1]
    assert kept([replace(long, weight=2.0), short], 1) == [1, None]
    assert kept([long, short], 1, hopeless=(1,)) == [1, None]  # no job is dropped for one that is hopeless


def test_a_training_job_keeps_its_devices_if_all_jobs_still_fit() -> None:
    trains, comes = need(100, 200, 1, 1.9, held=1, resize_seconds=10, protected_seconds=50), need(40, 90, 1, 1.9)
    assert kept([trains, comes], 2) == [1, 1]
    assert kept([trains, replace(comes, work=150)], 2) == [0, 2]  # only so both are in time
    assert kept([trains, replace(comes, work=150, end=80)], 2) == [0, 2]
    assert kept([trains, replace(comes, work=200)], 2) == [1, None]


def test_devices_of_a_starting_job_are_not_given_away() -> None:
    on_its_way = need(20, 500, 1, held=1, arrival_delay=30, resize_seconds=60)
    assert kept([on_its_way, need(50, 60, 1)], 1) == [1, None]
    assert kept([replace(on_its_way, arrival_delay=0.0), need(50, 60, 1)], 1) == [0, 1]


def test_a_job_does_not_grow_onto_devices_that_another_one_has_yet_to_give_back() -> None:
    """Both need more than they hold. The first is planned first, but the other's device is its own for 50 s."""
    first, second = need(140, 100, 1, 1.9, held=1), need(430, 300, 1, 1.9, held=1, protected_seconds=50)
    assert kept([first, second], 2)[0] == 1
    assert kept([first, replace(second, protected_seconds=0.0)], 2)[0] == 2


def test_a_job_with_a_share_of_a_device_gives_it_back_at_once() -> None:
    shares = Demand(10.0, 100.0, (1,), (1.0,), share=0.4, held=1.0, arrival_delay=30.0)
    assert kept([shares, need(50, 55, 1)], 1) == [0, 1]


def test_devices_that_are_given_back_leave_no_step() -> None:
    free = FreeDevices(0.0, 4)
    free.take(10, 20, 3)
    free.take(20, 30, 3)
    assert (free.times, free.devices) == ([0, 10, 30], [4, 1, 4])
    free.take(10, 30, -3)
    assert (free.times, free.devices) == ([0], [4])


def test_a_late_job_gets_the_devices_that_the_others_leave() -> None:
    jobs: list[Demand | None] = [need(100, 100, 1, 1.9, held=1), need(100, 60, 1, 1.9, latest=60)]
    laid, free = admit(jobs, 2, 0.0)
    assert laid[1] is None
    assert backfill(jobs, laid, free, (), grow=False, min_payback=5.0) == [1, 1]  # it may find a second one before long
    hopeless: list[Demand | None] = [jobs[0], need(200, 60, 1, 1.9)]
    laid, free = admit(hopeless, 2, 0.0)
    assert backfill(hopeless, laid, free, (), grow=False, min_payback=5.0) == [1, 0]


def test_spare_devices_are_used_only_when_growing_is_allowed() -> None:
    jobs: list[Demand | None] = [need(100, 300, 1, 1.9, 3, held=1, resize_seconds=2), need(100, 100, 1, held=1)]
    laid, free = admit(jobs, 8, 0.0)
    assert backfill(jobs, laid, free, (), grow=False, min_payback=5.0) == [1, 1]
    assert backfill(jobs, laid, free, (), grow=True, min_payback=5.0) == [4, 1]
    assert backfill(jobs, laid, free, (), grow=True, min_payback=50.0) == [
        1,
        1,
    ]  # a resize must gain more than it costs
    assert backfill(jobs, laid, free, {0}, grow=False, min_payback=5.0) == [
        4,
        1,
    ]  # nothing is known of it, so it is tried on all devices
    assert math.isclose(end_time(jobs[0], 4, 0.0), 2 + 100 / 3)  # type: ignore[arg-type]


def grown(jobs: list[Demand | None], free: FreeDevices, min_payback: float = 5.0) -> list[int]:
    """Return the devices of jobs that are admitted one after another and may grow."""
    laid = []
    for job in jobs:
        laid.append(on := None if job is None else reserve_fewest(job, free))
        for begin, end, devices in () if on is None else on.segments:
            free.take(begin, end, devices)
    return backfill(jobs, laid, free, (), grow=True, min_payback=min_payback)


def test_growth_goes_where_each_additional_device_saves_most() -> None:
    """From 1 to 2 devices the first saves 20 device-seconds, from 1 to 4 the other 50."""
    first, other = need(100, 300, 1, 2.5), Demand(100.0, 300.0, (1, 4), (1.0, 8.0))
    assert grown([first, other], FreeDevices(0.0, 5)) == [2, 1]
    assert grown([replace(first, throughputs=(1.0, 2.1)), other], FreeDevices(0.0, 5)) == [1, 4]


def test_a_job_that_is_planned_for_later_starts_on_spare_devices() -> None:
    free = FreeDevices(0.0, 4)
    free.take(0, 50, 3)  # until then one is left, on which it would not be in time
    job = need(150, 125, 1, 1.2, 3, start_seconds=20, resize_seconds=20)
    assert grown([job], free) == [1]


def test_a_hopeless_job_does_not_grow() -> None:
    assert grown([need(100, 100, 1, held=1), need(200, 60, 1, 1.9)], FreeDevices(0.0, 2)) == [1, 0]
