"""The player of recorded searches."""

import math

import pytest

from benchmarks.search import RECORDED
from benchmarks.searches.deadline_contender import HyperSched, Ours
from benchmarks.searches.freeze_thaw_contenders import CFBO, IfBO
from benchmarks.searches.play import NEW, Action, RecordedTrial, Terms, play, table_of
from benchmarks.searches.record_trials import read

TRIALS = [RecordedTrial((3.0, 2.0, 1.0), 1.0), RecordedTrial((2.5, 2.5, 0.5), 2.0)]


class Turns:
    """Trains one epoch of each trial in turn."""

    def __init__(self) -> None:
        self.waiting = list[int]()
        self.begun = 0

    def next_trial(self, now: float) -> int | None:
        if self.begun < 2:
            return NEW
        return self.waiting.pop(0) if self.waiting else None

    def started(self, trial: int, now: float) -> None:
        self.begun = max(self.begun, trial + 1)

    def result(self, trial: int, epoch: int, value: float, now: float, last: bool) -> Action:
        if not last:
            self.waiting.append(trial)
        return Action.PAUSE


def test_time_and_work_are_those_of_epochs_and_starts() -> None:
    played = play(Turns(), TRIALS, Terms(100.0, 1, 3, 0.5))
    assert played.ends == pytest.approx([1.5, 4.0, 5.5, 8.0, 9.5, 12.0])
    assert played.best == [3.0, 2.5, 2.0, 2.0, 1.0, 0.5]
    assert played.work == played.ends
    assert played.best_at(5.6) == 2.0
    assert played.best_with(1.0) == math.inf


def test_an_epoch_that_ends_after_the_deadline_does_not_count() -> None:
    assert play(Turns(), TRIALS, Terms(5.5, 1, 3, 0.5)).best[-1] == 2.0
    assert play(Turns(), TRIALS, Terms(5.4, 1, 3, 0.5)).best[-1] == 2.5


def test_two_devices_train_side_by_side() -> None:
    played = play(Turns(), TRIALS, Terms(100.0, 2, 3, 0.0))
    assert played.ends[-1] == pytest.approx(6.0)
    assert played.work[-1] == pytest.approx(9.0)


def test_the_recording_that_ships_has_hundreds_of_whole_trials() -> None:
    recorded = read(RECORDED)
    assert len(recorded) >= 200
    assert {len(trial["val_loss"]) for trial in recorded} == {81}
    assert len({str(trial["parameters"]) for trial in recorded}) == len(recorded)
    table = table_of(recorded, "val_loss", seed=1)
    assert sorted(table) == sorted(table_of(recorded, "val_loss", seed=2))
    assert table != table_of(recorded, "val_loss", seed=2)


@pytest.mark.parametrize("rule", [Ours, HyperSched, IfBO, CFBO])
def test_rules_with_ideas_of_their_own_find_a_good_trial(rule: type[Ours] | type[HyperSched]) -> None:
    table = table_of(read(RECORDED), "val_loss", seed=0)
    terms = Terms(2.7, 2, 81, 0.03)
    whole = min(min(trial.values) for trial in table[:2])
    assert play(rule(terms, len(table)), table, terms).best[-1] < 0.7 * whole


@pytest.mark.parametrize("rule", [Ours, CFBO])
def test_a_search_whose_time_has_a_price_ends_before_its_deadline(rule: type[Ours] | type[CFBO]) -> None:
    table = table_of(read(RECORDED), "val_loss", seed=0)
    terms = Terms(2.7, 1, 81, 0.03)
    work = [play(rule(terms, len(table), worth), table, terms).work[-1] for worth in (1.0, 0.003)]
    assert work[1] < 0.7 * work[0]
