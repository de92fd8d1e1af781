"""A search in a pool, in virtual time: the real scheduler decides where and when its trials train."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, cast

import optuna
import pytest
from optuna.trial import TrialState

from lightning_core.bundle.pool_section import ExistingPool
from lightning_core.core.answers import State, Verdict
from lightning_core.core.commands import Cancel, Pause, Resume
from lightning_core.core.jobs import Job
from lightning_core.core.targets import BatchTarget
from lightning_core.parts.search import pool_search
from lightning_core.parts.search.pool_search import Best, PoolSearch, SearchFailedError, study_of
from lightning_core.parts.search.search_file import SearchSpec
from lightning_core.pool.pool import Pool
from tests.parts.search.made_up_pool import RATE, MadeUpPool

EPOCHS = 10

Start = Callable[..., PoolSearch]


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    yield
    optuna.logging.set_verbosity(optuna.logging.INFO)


@pytest.fixture
def pool(monkeypatch: pytest.MonkeyPatch) -> MadeUpPool:
    made = MadeUpPool()
    monkeypatch.setattr(pool_search, "time", made.clock())
    return made


def search_of(
    pool: MadeUpPool, folder: Path, deadline: str = "60s", space: Any = None, file: Path | None = None, **terms: Any
) -> PoolSearch:
    """Return a search of ten epochs of a second, for the slope of a loss that falls as a power of its epochs."""
    space = space or {RATE: {"float": [0.05, 1.0]}}
    search = {"metric": "val_loss", "epochs": EPOCHS, "seed": 1, "space": space} | terms
    path = folder / "night.yaml"
    path.write_text(json.dumps({"deadline": deadline, "model": "tests.tiny.Line", "search": search}))
    spec = SearchSpec.from_file(path, ExistingPool(pool.settings.devices, "cpu", "the pool"))
    return PoolSearch(cast(Pool, pool), spec, study_of(spec, file))


def reached(pool: MadeUpPool) -> float:
    """Return the best value that any trial had."""
    return min(float((worker.batches // 10) ** -worker.rate) for worker in pool.workers.values())


def test_the_best_is_found_by_the_deadline(pool: MadeUpPool, tmp_path: Path) -> None:
    search = search_of(pool, tmp_path)
    best = search.run()
    assert pool.now == pytest.approx(60.0, abs=1.0)
    assert best.params[RATE] == pool.workers[best.job].rate
    assert best.value == pytest.approx(best.epoch ** -best.params[RATE]) == reached(pool)
    # Never more train at once than there are devices; more were tried than could be trained to the end.
    assert max(map(len, pool.running)) == 2
    assert len(pool.workers) > 2 * 60 / EPOCHS
    # No trial is left alive, and what was not trained to its end is cancelled, not late.
    assert {job.state for job in pool.jobs()} == {State.ENDED}
    assert {job.verdict for job in pool.jobs()} == {Verdict.MET, Verdict.CANCELLED}
    states = [trial.state for trial in search._study.trials]
    assert states.count(TrialState.COMPLETE) == sum(job.verdict is Verdict.MET for job in pool.jobs())
    assert set(states) == {TrialState.COMPLETE, TrialState.PRUNED}


def test_trials_that_make_room_go_on_later(pool: MadeUpPool, tmp_path: Path) -> None:
    search_of(pool, tmp_path).run()
    again = [job.name for job in pool.jobs() if job.incarnation > 1]
    assert again
    assert any(job.verdict is Verdict.MET and job.incarnation > 1 for job in pool.jobs())


def test_a_metric_can_be_maximised_up_to_a_target(pool: MadeUpPool, tmp_path: Path) -> None:
    pool.value = lambda rate, epoch: 1.0 - float(epoch**-rate)
    best = search_of(pool, tmp_path, mode="max", target=0.8).run()
    assert best.value >= 0.8
    assert pool.now < 50.0
    assert {job.state for job in pool.jobs()} == {State.ENDED}


@pytest.mark.parametrize(("worth", "ends"), [("10m", (59.0, 61.0)), ("0.1s", (2.0, 40.0)), ("0.001s", (1.0, 4.0))])
def test_a_search_ends_when_no_training_is_worth_its_time(
    pool: MadeUpPool, tmp_path: Path, worth: str, ends: tuple[float, float]
) -> None:
    best = search_of(pool, tmp_path, worth=worth).run()
    assert ends[0] <= pool.now <= ends[1]
    assert best.value == reached(pool)
    assert {job.state for job in pool.jobs()} == {State.ENDED}


def test_other_jobs_have_their_devices_by_the_policy(pool: MadeUpPool, tmp_path: Path) -> None:
    """A job that must have both devices for its last 10 s, in the middle of a search for both."""
    urgent = Job("urgent", 16.0, BatchTarget(150), min_devices=1)
    pool.at[20.0] = lambda: pool.add(urgent)
    best = search_of(pool, tmp_path).run()
    assert pool.scheduler.last("urgent").verdict is Verdict.MET
    assert best.job.startswith("night-")
    beside = [names for names in pool.running if "urgent" in names]
    assert sum(len(names) == 2 for names in beside) > 0.8 * len(beside)  # one device is left for the search


def test_a_search_that_is_interrupted_goes_on(pool: MadeUpPool, tmp_path: Path) -> None:
    def interrupt() -> None:
        raise KeyboardInterrupt

    pool.at[20.0] = interrupt
    with pytest.raises(KeyboardInterrupt):
        search_of(pool, tmp_path, file=tmp_path / "study.db").run()
    assert all(job.paused for job in pool.jobs() if job.state is not State.ENDED)
    before = {job.name: job.batches for job in pool.jobs()}
    pool.sleep(10.0)
    assert {job.name: job.batches for job in pool.jobs()} == pytest.approx(before, abs=3)  # nothing trains
    again = search_of(pool, tmp_path, file=tmp_path / "study.db")
    known = again.best
    best = again.run()
    assert pool.now == pytest.approx(60.0, abs=1.0)  # the deadline is the one that it began with
    assert known is not None
    assert best.value <= known.value
    assert any(job.batches > before[job.name] for job in pool.jobs() if job.name in before)
    assert len(again._study.trials) == len(pool.workers)


def test_a_pool_that_is_away_is_waited_for(pool: MadeUpPool, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    def go(away: bool) -> Callable[[], None]:
        return lambda: setattr(pool, "away", away)

    pool.at = {20.0: go(True), 35.0: go(False)}
    search = search_of(pool, tmp_path)
    connected = list[float]()
    search._connect = lambda: connected.append(pool.now) or cast(Pool, pool)  # type: ignore[func-returns-value]
    best = search.run()
    assert best.value == pytest.approx(reached(pool))
    assert pool.now == pytest.approx(60.0, abs=1.0)
    assert caplog.messages.count("night: the search waits for the pool: the pool does not answer") == 1
    assert len(search._study.trials) == len(pool.workers)
    assert 20.0 <= connected[0] <= connected[-1] <= 36.0
    assert sum(job.submitted_at > 35.0 for job in pool.jobs()) > 2
    # The time that it was away is not counted as training.
    assert all(trial.user_attrs["lightning_core:seconds"] < 13.0 for trial in search._study.trials)


def test_a_search_ends_at_its_deadline_though_the_pool_is_away(pool: MadeUpPool, tmp_path: Path) -> None:
    pool.at[20.0] = lambda: setattr(pool, "away", True)
    search = search_of(pool, tmp_path)
    best = search.run()
    assert pool.now == pytest.approx(60.0, abs=1.0)
    assert best == search.best
    assert all(trial.state.is_finished() for trial in search._study.trials)


def test_a_trial_that_fails_or_is_cancelled_does_not_end_the_search(pool: MadeUpPool, tmp_path: Path) -> None:
    pool.fails = {"night-1"}
    pool.at[6.0] = lambda: pool.send(Cancel("night-0"))
    search = search_of(pool, tmp_path, trials=6)
    search.run()
    states = [trial.state for trial in search._study.trials]
    assert states[:2] == [TrialState.PRUNED, TrialState.FAIL]
    assert len(states) == 6
    assert states.count(TrialState.COMPLETE) == 4  # there was time for all of them


def test_who_pauses_a_trial_is_told_and_a_person_has_the_last_word(pool: MadeUpPool, tmp_path: Path) -> None:
    """A trial that a person pauses stays so, though its search would have it train; one that is resumed trains."""
    pool.at[2.0] = lambda: pool.send(Pause("night-0", who="ann"))
    words = list[str]()
    pool.at[40.0] = lambda: words.extend(str(job.grant_reason) for job in pool.jobs() if job.paused)
    pool.at[41.0] = lambda: pool.send(Resume("night-0", who="ann"))
    search_of(pool, tmp_path).run()
    assert set(words) == {"paused by ann", "paused by its search"}
    assert not any("night-0" in names for names in pool.running[12:160])


def test_a_search_whose_trials_all_fail_is_over_soon(pool: MadeUpPool, tmp_path: Path) -> None:
    pool.fails = {f"night-{number}" for number in range(100)}
    with pytest.raises(SearchFailedError, match="night: no trial has reported val_loss: OverflowError: too much"):
        search_of(pool, tmp_path).run()
    assert pool.now < 10.0
    assert {job.state for job in pool.jobs()} == {State.ENDED}


def test_trials_that_diverge_first_do_not_end_the_search(pool: MadeUpPool, tmp_path: Path) -> None:
    pool.diverges = {f"night-{number}" for number in range(5)}
    search = search_of(pool, tmp_path, deadline="30s")
    best = search.run()
    assert best.job not in pool.diverges
    assert [trial.state for trial in search._study.trials][:5] == [TrialState.FAIL] * 5


def test_a_deadline_before_the_first_value_is_told(pool: MadeUpPool, tmp_path: Path) -> None:
    with pytest.raises(SearchFailedError, match="no trial has reported val_loss before the deadline"):
        search_of(pool, tmp_path, deadline="0.5s").run()


def test_a_grid_is_tried_once_each(pool: MadeUpPool, tmp_path: Path) -> None:
    space = {RATE: {"choices": [0.1, 0.4, 0.7]}, "model.init_args.log": {"choices": ["a", "b"]}}
    search = search_of(pool, tmp_path, sampler="grid", deadline="10m", space=space)
    search.check()
    assert len(pool.configs) == 3
    best = search.run()
    assert best.params[RATE] == 0.7
    drawn = [tuple(trial.params.values()) for trial in search._study.trials]
    assert len(set(drawn)) == len(drawn) == 6
    assert pool.now < 100.0


def test_devices_of_a_trial_count(pool: MadeUpPool, tmp_path: Path) -> None:
    assert search_of(pool, tmp_path).at_once == 2
    assert search_of(pool, tmp_path, at_once=1).at_once == 1
    path = tmp_path / "night.yaml"
    two_each = json.loads(path.read_text()) | {"devices": 2}
    two_each["search"].pop("at_once")
    path.write_text(json.dumps(two_each))
    spec = SearchSpec.from_file(path, ExistingPool(2, "cpu", "the pool"))
    assert PoolSearch(cast(Pool, pool), spec, study_of(spec)).at_once == 1


def test_each_better_value_is_told(pool: MadeUpPool, tmp_path: Path) -> None:
    told: list[Best] = []
    search = search_of(pool, tmp_path, deadline="20s")
    search._on_news = told.append
    best = search.run()
    assert told[-1] == best
    assert [one.value for one in told] == sorted((one.value for one in told), reverse=True)


def test_a_study_of_another_direction_is_refused(pool: MadeUpPool, tmp_path: Path) -> None:
    search = search_of(pool, tmp_path)
    with pytest.raises(ValueError, match="study must MINIMIZE for mode min, got MAXIMIZE"):
        PoolSearch(cast(Pool, pool), search._spec, optuna.create_study(direction="maximize"))


def test_a_name_that_is_taken_is_refused_before_anything_starts(pool: MadeUpPool, tmp_path: Path) -> None:
    pool.add(Job("night-4", 60.0, BatchTarget(100)))
    with pytest.raises(ValueError, match="night-4 is a job of the pool already"):
        search_of(pool, tmp_path).check()
