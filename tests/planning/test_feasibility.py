"""Whether jobs fit, and what would make them fit, against brute force on small instances."""

from __future__ import annotations

import itertools
import json
import math
import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from lightning_core.bundle.job_spec import JobSpec
from lightning_core.cluster.bundle import Bundle
from lightning_core.core.answers import Verdict
from lightning_core.core.jobs import Job
from lightning_core.core.targets import BatchTarget
from lightning_core.planning.feasibility import (
    UNKNOWN,
    FeasibilityReport,
    JobRequest,
    check_feasibility,
    preemptive_completion_times,
)
from lightning_core.run.bundle_plan import plan_bundle
from lightning_core.scheduler.ended_runs import EndedRun
from lightning_core.storage.private_files import this_user
from lightning_core.storage.runs.past_run import PastRun
from lightning_core.storage.runs.run_store import FILE, RunStore
from tests.examples import examples


def requests(sizes: bool = True, begins: bool = True) -> st.SearchStrategy[list[JobRequest]]:
    """Up to five jobs in whole seconds, so that brute force may go second by second."""
    one = st.tuples(
        st.integers(1, 6),
        st.integers(1, 15),
        st.integers(1, 3 if sizes else 1),
        st.sampled_from([1.0, 1.0, 2.0]),
        st.integers(0, 4 if begins else 0),
    )
    return st.lists(one, min_size=1, max_size=5).map(
        lambda rows: [
            JobRequest(f"j{i}", float(w), float(b + d), size, weight, float(b))
            for i, (w, d, size, weight, b) in enumerate(rows)
        ]
    )


def by_deadline(jobs: list[JobRequest]) -> list[JobRequest]:
    return sorted(jobs, key=lambda job: (job.deadline, job.work))


def second_by_second(jobs: list[JobRequest], devices: int) -> dict[str, int]:
    """Return end times with the devices allocated second by second to the earliest deadlines: a slow reference."""
    left = {job.name: int(job.work or 0) for job in jobs if job.size <= devices}
    end: dict[str, int] = {}
    for second in itertools.count():
        if not left:
            return end
        free = devices
        for job in by_deadline(jobs):
            if left.get(job.name) and job.not_before <= second and job.size <= free:
                free -= job.size
                left[job.name] -= 1
                if not left[job.name]:
                    del left[job.name]
                    end[job.name] = second + 1
    raise AssertionError


def all_in_time(jobs: list[JobRequest], devices: int) -> bool:
    end = second_by_second(jobs, devices)
    return all(end.get(job.name, math.inf) <= job.deadline for job in jobs)


def later(jobs: list[JobRequest], seconds: int) -> list[JobRequest]:
    return [job._replace(deadline=job.deadline + seconds) for job in jobs]


@settings(max_examples=examples(40), deadline=None)
@given(requests(), st.integers(1, 4))
def test_end_times_equal_those_of_a_second_by_second_simulation(jobs: list[JobRequest], devices: int) -> None:
    slow = second_by_second(jobs, devices)
    fast = preemptive_completion_times(by_deadline(jobs), devices)
    assert fast == [slow.get(job.name, math.inf) for job in by_deadline(jobs)]


@settings(max_examples=examples(40), deadline=None)
@given(requests(), st.integers(1, 3))
def test_suggestions_that_make_all_jobs_fit_are_minimal(jobs: list[JobRequest], devices: int) -> None:
    answer = check_feasibility(jobs, devices)
    assert (not answer.late) == all_in_time(jobs, devices) == (answer.more_time == 0) == (answer.devices == 0)
    enough = [more for more in range(40) if all_in_time(later(jobs, more), devices)]
    assert answer.more_time == (enough[0] if enough else math.inf)
    enough = [more for more in range(16) if all_in_time(jobs, devices + more)]
    assert answer.devices == (enough[0] if enough else None)


@settings(max_examples=examples(40), deadline=None)
@given(requests(sizes=False))
def test_the_suggested_extension_is_minimal_on_one_device(jobs: list[JobRequest]) -> None:
    # Jobs that begin and are due within an interval must fit into it, in any order (Horn, 1974).
    lacking = [
        sum(job.work or 0 for job in jobs if job.not_before >= start and job.deadline <= end) - (end - start)
        for start in {job.not_before for job in jobs}
        for end in {job.deadline for job in jobs}
        if end > start
    ]
    assert check_feasibility(jobs, 1).more_time == max(0.0, *lacking)


@settings(max_examples=examples(40), deadline=None)
@given(requests(), st.integers(1, 3))
def test_the_kept_set_is_feasible_and_cannot_be_extended(jobs: list[JobRequest], devices: int) -> None:
    answer = check_feasibility(jobs, devices)
    kept = [job for job in jobs if job.name in answer.fits]
    assert all_in_time(kept, devices)
    assert {*answer.fits, *answer.late} == {job.name for job in jobs}
    for job in jobs:
        if job.name in answer.late:
            assert not all_in_time([*kept, job], devices)


# Work, deadline, devices, weight, begin: the third makes it after the fourth and not before it, which is due at 4 s.
TIED = ((1.0, 1.0, 1, 1.0, 0.0), (1.0, 2.0, 1, 1.0, 1.0), (2.0, 1.0, 1, 1.0, 0.0), (3.0, 4.0, 1, 1.0, 1.0))


@settings(max_examples=examples(40), deadline=None)
@given(requests(), st.integers(1, 3))
@example([JobRequest(f"j{k}", *terms) for k, terms in enumerate(TIED)], 2)
def test_the_minimum_deadline_of_a_job_is_minimal(jobs: list[JobRequest], devices: int) -> None:
    answer = check_feasibility(jobs, devices)
    kept = [job for job in jobs if job.name in answer.fits]
    for job in jobs:
        if job.name in answer.late:
            enough = [
                d for d in range(int(job.deadline), 60) if all_in_time([*kept, job._replace(deadline=d)], devices)
            ]
            # What must come after another one's deadline does so by a trifle: the next whole second.
            assert math.ceil(answer.late[job.name]) == enough[0] if enough else answer.late[job.name] == math.inf


@settings(max_examples=examples(40), deadline=None)
@given(requests(sizes=False, begins=False))
def test_the_number_of_jobs_kept_on_one_device_is_maximal(jobs: list[JobRequest]) -> None:
    equal = [job._replace(weight=1.0) for job in jobs]
    subsets = (s for n in range(len(equal) + 1) for s in itertools.combinations(equal, n))
    most = max(len(s) for s in subsets if all_in_time(list(s), 1))
    assert len(check_feasibility(equal, 1).fits) == most


def test_of_two_equal_jobs_the_heavier_is_kept() -> None:
    assert check_feasibility([JobRequest("a", 5.0, 6.0), JobRequest("b", 5.0, 6.0, weight=2.0)], 1).fits == ("b",)


def test_a_hundred_jobs_are_planned_in_seconds() -> None:
    jobs = [JobRequest(f"j{i}", 60.0 + i % 7, 40.0 * (1 + i)) for i in range(100)]
    answer = check_feasibility(jobs, 1)
    assert len(answer.fits) + len(answer.late) == 100
    assert answer.late


@pytest.mark.parametrize(
    ("jobs", "devices", "lines"),
    [
        ([JobRequest("a", 60.0, 1000.0), JobRequest("b", 60.0, 2000.0)], 1, ["all 2 fit, 15m40s to spare"]),
        ([JobRequest("a", 60.0, 100.5)], 1, ["1 fits, 40.0s to spare"]),
        ([JobRequest("a", 600.0, 700.0), JobRequest("b", 900.0, 701.0)], 1, [
            "1 of 2 fits; 14 more minutes would do",
            "b: a deadline of 25m would do",
        ]),
        ([JobRequest("a", 600.0, 601.0), JobRequest("b", 600.0, 601.0)], 1, [
            "1 of 2 fits; 10 more minutes or one more device would do",
            "a: a deadline of 20m would do",
        ]),
        ([JobRequest("a", 9.0, 10.0, size=3)], 1, [
            "0 of 1 fit; 2 more devices would do",
            "a: needs more devices than there are",
        ]),
        ([JobRequest("a", 9.0, 8.0, size=3)], 1, [
            "0 of 1 fit; neither more time nor more devices would do",
            "a: needs more devices than there are",
        ]),
        ([JobRequest("a", 1.0, 9.0), JobRequest("b", None, 9.0)], 1, [
            "1 fits, 8.0s to spare",
            "b: of unknown work; fits if it takes at most 8.0s",
            "if it takes half as long, 4.0s: 4.0s to spare",
            "if it takes twice as long, 16.0s: 1 of 2 fit: a",
            UNKNOWN,
        ]),
        ([JobRequest("a", None, 9.0)], 2, [
            "the work of no job is known",
            "a: of unknown work; fits if it takes at most 9.0s",
            "if it takes half as long, 4.5s: 4.5s to spare",
            "if it takes twice as long, 18.0s: 0 of 1 fit",
            UNKNOWN,
        ]),
        ([JobRequest("a", None, 10.0), JobRequest("b", None, 15.0), JobRequest("c", None, 60.0)], 1, [
            "the work of no job is known",
            "a, b, c: of unknown work; all fit if each takes at most 7.5s",
            "if each takes half as long, 3.7s: 6.2s to spare",
            "if each takes twice as long, 15.0s: 2 of 3 fit: b, c",
            UNKNOWN,
        ]),
        ([JobRequest("a", 9.0, 9.0), JobRequest("b", None, 9.0)], 1, [
            "1 fits, 0.0s to spare",
            "b: of unknown work; the others leave no time for it",
            UNKNOWN,
        ]),
        ([JobRequest("a", 7201.0, 1.0)], 1, ["0 of 1 fit; 2h more would do", "a: a deadline of 2h1m would do"]),
        ([JobRequest("a", 10000.5, 1.0)], 1, ["0 of 1 fit; 2h47m more would do", "a: a deadline of 2h47m would do"]),
    ],
)  # fmt: skip
def test_a_plan_reads_as_english(jobs: list[JobRequest], devices: int, lines: list[str]) -> None:
    assert check_feasibility(jobs, devices).lines() == lines


def test_a_pool_without_devices_is_refused() -> None:
    with pytest.raises(ValueError, match="devices must be at least 1, got 0"):
        check_feasibility([], 0)
    with pytest.raises(ValueError, match=r"devices must be at least 1 of each kind, got \{'a100': 0\}"):
        check_feasibility([], {"a100": 0})
    assert check_feasibility([], 1) == FeasibilityReport((), {}, (), math.inf, 0)


KINDS = ("a100", "t4")


def on_kinds(draw: np.random.Generator) -> tuple[list[JobRequest], dict[str, int]]:
    """Draw up to six jobs, and the devices of two kinds."""
    jobs = [
        JobRequest(
            f"j{k}", work := float(draw.integers(2, 30)), math.ceil(work * draw.uniform(1, 4)),
            int(draw.choice([1, 1, 1, 2])), 1.0, float(draw.choice([0, 0, 3])),
            {"a100": 1.0, "t4": float(draw.choice([0.2, 0.5, 0.8, 1.0]))}, ("t4",) if draw.random() < 0.1 else (),
        )
        for k in range(draw.integers(2, 7))
    ]  # fmt: skip
    return jobs, {kind: int(draw.integers(1, 3)) for kind in KINDS}


def most_in_time(jobs: list[JobRequest], devices: dict[str, int]) -> int:
    """Return the most jobs that any choice of kinds has in time."""

    def fit(choice: tuple[str, ...]) -> bool:
        at = {kind: [job.on(kind) for job, one in zip(jobs, choice, strict=True) if one == kind] for kind in KINDS}
        may = all(not one or job.may_be_on(one) for job, one in zip(jobs, choice, strict=True))
        ends = {kind: preemptive_completion_times(by_deadline(its), devices[kind]) for kind, its in at.items()}
        return may and all(
            end <= job.deadline
            for kind, its in at.items()
            for job, end in zip(by_deadline(its), ends[kind], strict=True)
        )

    choices = itertools.product(("", *KINDS), repeat=len(jobs))
    return max(len(jobs) - choice.count("") for choice in choices if fit(choice))


@pytest.mark.parametrize("seed", range(3))
def test_on_several_kinds_as_many_fit_as_by_the_best_choice(seed: int) -> None:
    draw = np.random.default_rng(seed)
    for _ in range(8):
        jobs, devices = on_kinds(draw)
        answer = check_feasibility(jobs, devices)
        assert len(answer.fits) == most_in_time(jobs, devices)
        assert {*answer.fits, *answer.late} == {job.name for job in jobs}
        assert all(job.may_be_on(answer.on[job.name]) for job in jobs if job.name in answer.fits)


@pytest.mark.parametrize("seed", range(3))
def test_on_several_kinds_what_would_do_does(seed: int) -> None:
    draw = np.random.default_rng(seed)
    seen = set[str]()
    for _ in range(15):
        jobs, devices = on_kinds(draw)
        answer = check_feasibility(jobs, devices)
        if not answer.late:
            assert answer.spare >= 0
            continue
        for kind, more in answer.more.items():
            assert not check_feasibility(jobs, {**devices, kind: devices[kind] + more}).late
            assert more == 1 or check_feasibility(jobs, {**devices, kind: devices[kind] + more - 1}).late
            seen.add("more")
        if math.isfinite(answer.more_time):
            later = [job._replace(deadline=job.deadline + answer.more_time + 1e-6) for job in jobs]
            assert not check_feasibility(later, devices).late
            seen.add("time")
        fits = [job for job in jobs if job.name in answer.fits]
        for name, deadline in answer.late.items():
            if math.isfinite(deadline):
                job = next(one for one in jobs if one.name == name)
                assert not check_feasibility([*fits, job._replace(deadline=deadline)], devices).late
                seen.add("late")
    assert seen == {"more", "time", "late"}


def test_kinds_that_are_one_are_counted_as_devices_that_are_alike() -> None:
    jobs = [JobRequest(f"j{k}", 5.0 + k, 9.0 + 3 * k, 1 + k % 2, paces={"a100": 1.0}) for k in range(9)]
    alike = [job._replace(paces={}) for job in jobs]
    one, same = check_feasibility(jobs, {"a100": 3}), check_feasibility(alike, 3)
    assert (one.fits, one.late, one.more.get("a100", 0)) == (same.fits, same.late, same.devices)
    assert one.late
    assert one.spare == pytest.approx(same.spare)


HALF = {"a100": 1.0, "t4": 0.5}


@pytest.mark.parametrize(
    ("jobs", "lines"),
    [
        ([JobRequest("a", 60.0, 100.0, paces=HALF), JobRequest("b", 50.0, 105.0, paces=HALF)],
         ["all 2 fit, 5.0s to spare", "on a100: a", "on t4: b"]),
        ([JobRequest("a", 60.0, 90.0, paces=HALF), JobRequest("b", 60.0, 90.0, paces=HALF)],
         ["1 of 2 fits; 30 more seconds or one more a100 would do", "on a100: b",
          "a: a deadline of 2m would do on a100"]),
        ([JobRequest("a", 60.0, 100.0, paces={"a100": 2, "t4": 1.0}, kinds=("t4",)),
          JobRequest("b", 60.0, 110.0, paces={"a100": 2, "t4": 1.0}, kinds=("t4",))],
         ["1 of 2 fits; 10 more seconds or one more t4 would do", "on t4: b",
          "a: a deadline of 2m would do on t4; in time on a100, which its kinds exclude"]),
        ([JobRequest("a", 60.0, 100.0, size=2, paces={"a100": 1, "t4": 1.0})],
         ["0 of 1 fit; one more a100 or one more t4 would do", "a: needs more devices than there are of one kind"]),
        ([JobRequest("a", 60.0, 100.0, paces=HALF), JobRequest("b", None, 100.0, paces=HALF)],
         ["1 fits, 40.0s to spare", "on a100: a", "b: of unknown work; fits if it takes at most 50.0s",
          "if it takes half as long, 25.0s: 15.0s to spare", "if it takes twice as long, 1m40s: 1 of 2 fit: a",
          UNKNOWN]),
    ],
)  # fmt: skip
def test_a_plan_of_several_kinds_names_them(jobs: list[JobRequest], lines: list[str]) -> None:
    assert check_feasibility(jobs, {"a100": 1, "t4": 1}).lines() == lines


def test_a_hundred_jobs_on_kinds_are_planned_in_seconds() -> None:
    jobs = [JobRequest(f"j{i}", 60.0 + i % 7, 25.0 * (1 + i), paces={"a100": 1.0, "t4": 0.3}) for i in range(100)]
    answer = check_feasibility(jobs, {"a100": 1, "t4": 2})
    assert len(answer.fits) + len(answer.late) == 100
    assert answer.late


def test_a_bundle_is_planned_from_estimates_and_from_earlier_runs(tmp_path: Path) -> None:
    common = {"model": "tests.tiny.Line", "deadline": "10m"}
    bundle = Bundle.from_dict(
        {
            "policy": "edf",
            "jobs": {
                "given": {**common, "target": {"loss": 0.1}, "work": "2m"},
                "met": {**common, "target": {"batches": 100}},
                "other": {**common, "target": {"batches": 100}},
                "wide": {**common, "target": {"loss": 0.1}, "max_devices": 4, "work": "8m"},
            },
        }
    )
    summaries = {
        "old": {"met": {"verdict": "met", "target": "100 batches", "busy": 500.0}},
        "new": {
            "met": {"verdict": "met", "target": "100 batches", "busy": 60.0},
            "other": {"verdict": "met", "target": "200 batches", "busy": 60.0},
        },
        "newest": {"met": {"verdict": "missed", "target": "100 batches", "busy": 900.0}},
        "broken": None,
    }
    for age, (name, jobs) in enumerate(summaries.items()):
        path = tmp_path / name / "summary.json"
        path.parent.mkdir()
        path.write_text(json.dumps({"jobs": jobs}) if jobs else "{")
        os.utime(path, (age, age))
    lines, fits = plan_bundle(bundle, tmp_path)
    assert (lines, fits) == (
        [
            "2 of 3 fit; 60 more seconds or one more device would do",
            "given: needs 2m of 10m (its work as given)",
            "met: needs 60.0s of 10m (as in an earlier run)",
            "wide: needs 8m of 10m (its work as given)",
            "wide: a deadline of 11m would do",
            "other: of unknown work; fits if it takes at most 7m",
            "if it takes half as long, 3m30s: 3m30s to spare",
            "if it takes twice as long, 14m: 2 of 4 fit: given, met",
            UNKNOWN,
        ],
        False,
    )
    lines, fits = plan_bundle(bundle)
    assert lines[0] == "all 2 fit, 0.0s to spare"
    assert fits


def test_a_plan_knows_how_long_a_run_of_the_same_task_took(tmp_path: Path) -> None:
    tmp_path.chmod(0o700)
    job = Job("new", 600.0, BatchTarget(100))
    bundle = Bundle((JobSpec(job, {"model": {"class_path": "mine.Vit"}}),))
    kept = RunStore(tmp_path / FILE)
    past = PastRun.of(
        EndedRun(replace(job, name="vit-3", model="mine.Vit"), Verdict.MET, (), (), 100, (), 150.0, 0.0, 200.0, None),
        this_user(), "cpu", 1e9,
    )  # fmt: skip
    assert "of unknown work" in str(plan_bundle(bundle, kept=kept))
    kept.add([past])
    lines, _ = plan_bundle(bundle, kept=kept)
    assert lines[1] == "new: needs 2m30s of 10m (vit-3 took 2m30s last time)"
    kept.close()


def test_a_plan_of_several_kinds_knows_the_rates_of_earlier_runs(tmp_path: Path) -> None:
    tmp_path.chmod(0o700)
    common = {"model": "tests.tiny.Line", "target": {"batches": 1000}}
    bundle = Bundle.from_dict(
        {
            "pool": {"devices": {"a100": 1, "t4": 2}},
            "jobs": {
                "seen": {**common, "deadline": "10m"},
                "given": {"model": "mine.Other", "target": {"loss": 0.1}, "deadline": "10m", "work": "3m"},
                "bound": {**common, "deadline": "2m", "kinds": ["t4"]},
            },
        }
    )
    kept = RunStore(tmp_path / FILE)
    lines, fits = plan_bundle(bundle, kept=kept)
    assert lines == [
        "1 fits, 7m to spare",
        "given: needs 3m of 10m (its work as given)",
        "no earlier run says how fast the kinds of devices are: all are counted as alike",
        "on a100: given",
        "seen, bound: of unknown work; all fit if each takes at most 2m",
        "if each takes half as long, 60.0s: 60.0s to spare",
        "if each takes twice as long, 4m: 2 of 3 fit: seen, given",
        UNKNOWN,
    ]
    job = bundle.jobs[0].identified
    run = EndedRun(job, Verdict.MET, (), (), 1000, (), 150.0, 0.0, 200.0, None, (("a100", 1, 10.0), ("t4", 1, 2.5)))
    kept.add([PastRun.of(run, this_user(), "cpu", 1e9)])
    lines, fits = plan_bundle(bundle, kept=kept)
    assert lines == [
        "2 of 3 fit; 5 more minutes would do",
        "seen: needs 1m40s on a100, 6m40s on t4 of 10m (as much as seen)",
        "given: needs 3m on a100, about 9m6s on t4 of 10m (its work as given)",
        "bound: needs 6m40s of 2m (as much as seen)",
        "on a100: seen, given",
        "bound: a deadline of 6m40s would do on t4; in time on a100, which its kinds exclude",
    ]
    assert not fits
    # The pool has found its kinds itself: as if the bundle named them.
    there = replace(bundle, settings=replace(bundle.settings, locations=()))
    assert plan_bundle(there, kept=kept, kinds=("a100", "t4", "t4")) == (lines, fits)
    kept.close()
