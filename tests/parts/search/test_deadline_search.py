"""Which trials of a search run."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from lightning_core.parts.search.decision.deadline_search import NEW, DeadlineSearch

Curve = Callable[[int], float]


def play(
    search: DeadlineSearch, curve_of: Callable[[int], Curve], devices: int = 1, begun: list[float] | None = None
) -> list[int]:
    """Play a search in virtual time, a second a step; return the steps of each trial, and keep when each began."""
    now, running = 0.0, list[int]()
    while now < search.deadline:
        while len(running) < devices and (chosen := search.choose(now)) is not None:
            if chosen == NEW:
                chosen = search.begin()
                if begun is not None:
                    begun.append(now)
            else:
                search.resume(chosen)
            running.append(chosen)
        if not running:
            break
        now += 1.0
        for number in list(running):
            step = search.trials[number].step + 1
            search.report(number, step, curve_of(number)(step), float(step))
            if not search.continues(number, now):
                running.remove(number)
                (search.end if search.trials[number].over else search.pause)(number)
    return [trial.step for trial in search.trials]


def falling(number: int) -> Curve:
    """A curve with a slope of its own: most are bad, each seventh is good."""
    rng = np.random.default_rng(number)
    slope = 0.6 if number % 7 == 3 else rng.uniform(0.0, 0.3)
    return lambda step: float(2.3 * step**-slope * math.exp(rng.normal(0, 0.01)))


@pytest.mark.parametrize("devices", [1, 3])
def test_most_of_the_time_goes_to_the_best_trials(devices: int) -> None:
    search = DeadlineSearch(deadline=150.0, max_steps=64)
    steps = play(search, falling, devices)
    assert sum(steps) >= 0.95 * 150 * devices
    good = [step for number, step in enumerate(steps) if number % 7 == 3]
    assert len(steps) > 7
    assert max(good) == 64
    assert sum(good) > 0.4 * sum(steps)
    assert search.best == pytest.approx(2.3 * 64**-0.6, rel=0.1)


def test_exploration_ends_by_itself() -> None:
    begun = list[float]()
    steps = play(DeadlineSearch(deadline=80.0, max_steps=64), falling, begun=begun)
    assert len(begun) > 4
    # What is left of the time is for what has begun.
    assert max(begun) < 0.6 * 80
    assert max(steps) > 20


def test_an_accuracy_is_maximised() -> None:
    search = DeadlineSearch(deadline=150.0, max_steps=64, mode="max")
    steps = play(search, lambda number: lambda step: 1.0 - falling(number)(step) / 2.4)
    assert np.argmax(steps) % 7 == 3
    assert search.best == pytest.approx(1 - 2.3 * 64**-0.6 / 2.4, rel=0.05)


def test_a_metric_that_turns_negative_is_followed() -> None:
    search = DeadlineSearch(deadline=150.0, max_steps=64)
    steps = play(search, lambda number: lambda step: math.log(falling(number)(step)))
    assert np.argmax(steps) % 7 == 3


def test_a_search_ends_at_its_target() -> None:
    search = DeadlineSearch(deadline=math.inf, max_steps=64, target=0.5)
    now = [0.0]

    def curve_of(number: int) -> Curve:
        return falling(number)

    steps = play_until_over(search, curve_of, now)
    assert search.best is not None
    assert search.best <= 0.5
    assert sum(steps) < 200
    assert search.choose(now[0]) is None
    assert not search.continues(0, now[0])


def play_until_over(search: DeadlineSearch, curve_of: Callable[[int], Curve], now: list[float]) -> list[int]:
    """Play a search on one device until it is over, at most 1,000 steps."""
    curves = dict[int, Curve]()
    while not search.is_over(now[0]) and now[0] < 1000:
        chosen = search.choose(now[0])
        assert chosen is not None
        if chosen == NEW:
            chosen = search.begin()
            curves[chosen] = curve_of(chosen)
        else:
            search.resume(chosen)
        while True:
            now[0] += 1.0
            step = search.trials[chosen].step + 1
            search.report(chosen, step, curves[chosen](step), float(step))
            if not search.continues(chosen, now[0]):
                break
        (search.end if search.trials[chosen].over else search.pause)(chosen)
    return [trial.step for trial in search.trials]


def test_a_trial_that_has_diverged_is_over() -> None:
    search = DeadlineSearch(deadline=100.0, max_steps=10)
    number = search.begin()
    search.report(number, 1, math.nan, 1.0)
    assert not search.continues(number, 1.0)
    assert search.best is None
    search.end(number)
    assert search.choose(1.0) == NEW


def test_no_more_trials_begin_than_there_are() -> None:
    search = DeadlineSearch(deadline=100.0, max_steps=10, max_trials=1)
    number = search.begin()
    search.report(number, 1, 1.0, 1.0)
    assert search.choose(1.0) is None
    assert search.continues(number, 1.0)


def test_at_the_end_of_a_period_there_is_a_trial_to_train() -> None:
    search = DeadlineSearch(deadline=1e6, max_steps=10)
    number = search.begin()
    search.report(number, 1, 1.0, 1.0)
    search.pause(number)
    assert all(search.choose(1.0 + 0.5 * tick) is not None for tick in range(200))


def with_trials(*curves: list[float], running: int | None = None, **options: Any) -> DeadlineSearch:
    """A search whose trials have trained, a second a step; all of them wait but one."""
    search = DeadlineSearch(**({"deadline": 1000.0, "max_steps": 16} | options))
    for number, curve in enumerate(curves):
        search.begin()
        for step, value in enumerate(curve, 1):
            search.report(number, step, value, float(step))
        if number != running:
            search.pause(number)
    return search


def test_the_better_of_two_trials_is_chosen() -> None:
    good, bad = [1.0, 0.7, 0.5, 0.4], [1.0, 1.0, 0.99, 0.99]
    for curves, best in (((good, bad), 0), ((bad, good), 1)):
        assert with_trials(*curves, max_trials=2, deadline=20.0).choose(8.0) == best
        upside_down = [[1.0 - 0.5 * value for value in curve] for curve in curves]
        assert with_trials(*upside_down, max_trials=2, deadline=20.0, mode="max").choose(8.0) == best


def test_a_trial_makes_room_for_a_better_one_and_stays_beside_a_worse_one() -> None:
    good, bad = [1.0, 0.7, 0.5, 0.4], [1.0, 1.0, 0.99, 0.99]
    assert not with_trials(good, bad, running=1, max_trials=2, deadline=20.0).continues(1, 8.0)
    assert with_trials(good, bad, running=0, max_trials=2, deadline=20.0).continues(0, 8.0)


def test_a_trial_that_has_nearly_ended_ends() -> None:
    search = with_trials([0.5] * 4, [1.0] * 15, running=1, max_trials=2)
    assert search.continues(1, 20.0)


def test_towards_a_target_what_counts_is_gain_per_second() -> None:
    # Two trials that promise alike; one takes ten times as long a step.
    search = DeadlineSearch(deadline=math.inf, max_steps=16, max_trials=2, target=0.01)
    for number, seconds in enumerate((1.0, 10.0)):
        search.begin()
        for step in range(1, 5):
            search.report(number, step, 1.0 / step, step * seconds)
        search.pause(number)
    assert search.choose(50.0) == 0


def test_after_the_deadline_nothing_goes_on() -> None:
    search = DeadlineSearch(deadline=10.0, max_steps=10)
    number = search.begin()
    search.report(number, 1, 1.0, 1.0)
    assert search.continues(number, 9.0)
    assert not search.continues(number, 10.0)
    assert search.choose(10.0) is None


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"mode": "best"}, "mode must be 'min' or 'max', got 'best'"),
        ({"start": -1.0}, "start must be finite and at least 0 seconds, got -1"),
        ({"max_steps": 1}, "max_steps must be at least 2 and finite, got 1"),
        ({"deadline": math.nan}, "deadline must be a number, got nan"),
        ({"target": math.inf}, "target must be finite, got inf"),
        ({"worth": 0.0}, "worth must be finite and above 0 seconds, got 0"),
        ({"worth": math.nan}, "worth must be finite and above 0 seconds, got nan"),
    ],
)
def test_a_bad_argument_is_refused(changes: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        DeadlineSearch(**({"deadline": 10.0, "max_steps": 10} | changes))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("step", "seconds", "message"),
    [
        (1, 2.0, "step must be above that of the last report"),
        (2, -0.5, "seconds must be finite and at least 0, got -0.5"),
    ],
)
def test_a_bad_report_is_refused(step: int, seconds: float, message: str) -> None:
    search = DeadlineSearch(deadline=10.0, max_steps=10)
    number = search.begin()
    search.report(number, 1, 1.0, 1.0)
    with pytest.raises(ValueError, match=message):
        search.report(number, step, 1.0, seconds)


def test_a_search_ends_the_sooner_the_less_a_better_value_is_worth() -> None:
    trained, best = list[int](), list[float | None]()
    for worth in (None, 1e6, 1.0, 0.1, 1e-6):
        search = DeadlineSearch(deadline=120.0, max_steps=64, worth=worth)
        trained.append(sum(play(search, falling)))
        best.append(search.best)
    # However much it is worth: seconds at the end in which nothing can become the best are not used.
    assert trained[1] > 0.95 * trained[0]
    assert best[0] == best[1]
    assert trained == sorted(trained, reverse=True)
    assert 1 < trained[2] < trained[0]
    # One step, without which nothing is known.
    assert trained[-1] == 1


def test_what_is_not_worth_its_time_does_not_train_and_what_is_does() -> None:
    search = DeadlineSearch(deadline=1e6, max_steps=100, max_trials=2, worth=1.0)
    for number, level in enumerate((1.0, 4.0)):
        search.begin()
        for step in range(1, 41):
            search.report(number, step, level * step**-0.5, 60.0 * step)
    # A step is a minute, and 1 % better is worth a second.
    assert not search.continues(0, 2400.0)
    search.pause(0)
    assert search.choose(2400.0) is None
    # If it is worth ten minutes, the better trial is trained on; the other one still is not.
    search.worth = 600.0
    assert search.choose(2401.0) == 0
    search.resume(0)
    search.trials[0].compared_at = 0
    assert search.continues(0, 2402.0)
    assert not search.continues(1, 2402.0)
