"""Power laws of trainings whose learning rates come down: what annealing gains, and where a threshold is reached."""

from __future__ import annotations

import numpy as np
import pytest

from lightning_core.core.arrays import FloatArray
from lightning_core.estimators import annealed_families
from lightning_core.estimators.annealed_families import GAINS, POINTS, AnnealedFamilies, annealing
from lightning_core.estimators.curve_families import FAMILY, CurveFamilies
from lightning_core.estimators.posterior import POWERS, Posterior

ROW = np.array([0])
END = 2000.0
STEPS = np.array([1.0, 1000.0, 1001.0, END]), np.array([1.0, 1.0, 0.1, 0.1])
COSINE = np.arange(1.0, END, 10.0), 0.5 + 0.5 * np.cos(np.pi * np.arange(1.0, END, 10.0) / END)
Schedule = tuple[FloatArray, FloatArray]


def down(s: FloatArray, schedule: Schedule) -> FloatArray:
    """Return how far a rate that only comes down has done so, on average over the last hundredth of the run."""
    delay = schedule[0][-1] / 100
    found: FloatArray = np.mean([1.0 - np.interp(s - delay * k / 200, *schedule) for k in range(200)], axis=0)
    return found


def fed(schedule: Schedule | None, positions: FloatArray, losses: FloatArray) -> Posterior:
    bank = Posterior()
    bank.grow(1)
    if schedule is not None:
        bank.schedule(0, *schedule)
    for s, loss in zip(positions, losses, strict=True):
        bank.observe(ROW, np.array([s]), np.array([loss]))
    return bank


@pytest.mark.parametrize("schedule", [STEPS, COSINE])
def test_how_far_a_rate_has_come_down_is_an_average_over_a_hundredth_of_the_run(schedule: Schedule) -> None:
    points = annealing(*schedule)
    assert points is not None
    s = np.linspace(1.0, 1.2 * END, 1000)
    assert np.interp(s, *points) == pytest.approx(down(s, schedule), abs=0.02)


@pytest.mark.parametrize("schedule", [STEPS, COSINE])
def test_the_points_that_are_kept_span_the_run_and_what_it_averages_over(schedule: Schedule) -> None:
    points = annealing(*schedule)
    assert points is not None
    at, annealed = points
    assert len(at) == len(annealed) == POINTS
    assert (at[0], at[-1]) == pytest.approx((schedule[0][0], 1.01 * schedule[0][-1]))
    assert (np.diff(at) > 0).all()


def test_each_memory_has_candidates_of_each_gain() -> None:
    laws = CurveFamilies(np.array([0.0, 2.0, 8.0]), 1.0, np.full(3, 1 / 3), 0.5)
    laws.grow(1)
    annealed = AnnealedFamilies(laws)
    annealed.set(0, *STEPS, laws)
    for s in range(20, 200, 20):
        annealed.observe(ROW, np.array([float(s)]), np.array([s**-0.3]))
    losses, log_belief = annealed.predict(ROW, np.array([300.0]))
    assert losses.shape == log_belief.shape == (1, 3, len(GAINS) * 2 * len(FAMILY))


def test_a_rate_has_come_down_from_its_highest_so_far() -> None:
    warm_up = np.array([1.0, 100.0, 1000.0]), np.array([0.0, 1.0, 1.0])
    assert annealing(*warm_up) is None
    points = annealing(np.array([1.0, 100.0, 500.0, 501.0, 1000.0]), np.array([0.2, 0.5, 0.25, 1.0, 0.0]))
    assert points is not None
    assert np.interp([100.0, 500.0, 540.0, 2000.0], *points) == pytest.approx([0.0, 0.49, 0.08, 1.0], abs=0.03)


def test_losses_are_divided_by_what_annealing_gains() -> None:
    s = np.arange(20.0, 1600.0, 20.0)
    losses = s**-0.4 * np.random.default_rng(0).lognormal(0, 0.05, len(s))
    bank = fed(COSINE, s, losses)
    points = annealing(*COSINE)
    assert points is not None
    for k, gain in enumerate(GAINS.tolist()):
        plain = fed(None, s, losses * np.exp(gain * np.interp(s, *points)))._families
        ours = bank._annealed._families
        for name in ours.STATE:
            assert getattr(ours, name)[k] == pytest.approx(getattr(plain, name)[0], rel=1e-9), name


def test_a_loss_that_falls_with_its_rate_is_foreseen() -> None:
    """The rate falls at 900 batches as it did at 300: what that gained is expected once more."""
    schedule = np.array([1.0, 300.0, 301.0, 900.0, 901.0, 3000.0]), np.array([1.0, 1.0, 0.4, 0.4, 0.04, 0.04])
    s = np.arange(10.0, 800.0, 10.0)

    def curve(at: FloatArray) -> FloatArray:
        return (at**-0.3 + 0.05) * np.exp(-0.8 * down(at, schedule))

    threshold = curve(np.array([1000.0]))
    losses = curve(s) * np.random.default_rng(1).lognormal(0, 0.01, len(s))
    assert fed(schedule, s, losses).first_passage(ROW, threshold)[0, 9] == pytest.approx(1000, rel=0.15)
    assert fed(None, s, losses).first_passage(ROW, threshold)[0, 9] > 2000


@pytest.mark.parametrize("schedule", [STEPS, COSINE])
@pytest.mark.parametrize("seen", [100.0, 980.0, 1020.0, 1900.0])
def test_passages_are_those_of_the_curves_that_are_predicted(
    schedule: Schedule, seen: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(annealed_families, "NEGLIGIBLE", -np.inf)
    s = np.arange(20.0, seen, 20.0)
    bank = fed(schedule, s, s**-0.3)
    annealed, now = bank._annealed, s[-1]
    ahead = np.unique(np.concatenate([np.geomspace(now, 1e5, 1500), np.linspace(now, max(END, 2 * now), 1500)]))
    curves, log_belief = annealed.predict(np.zeros(len(ahead), np.int64), ahead)
    counts = log_belief[0] > -np.inf
    for threshold in (0.2, 0.1, 0.05):
        found = annealed.follow(ROW, np.array([threshold])).left[0]
        for memory in range(len(POWERS)):
            below = curves[:, memory][:, counts[memory]] <= threshold
            reaches = below.any(axis=0)
            expected = np.maximum(ahead[below.argmax(axis=0)] - now, s[0])
            left = found[memory][: counts[memory].sum()]
            assert left[reaches] == pytest.approx(expected[reaches], rel=0.08, abs=6 * END / POINTS / 10)
            assert (left[~reaches] > 0.95 * (1e5 - now)).all()


def test_until_the_rate_comes_down_gains_are_believed_by_their_prior() -> None:
    s = np.arange(10.0, 900.0, 10.0)
    _, log_belief = fed(STEPS, s, s**-0.3)._annealed.predict(ROW, np.array([950.0]))
    by_gain = log_belief.reshape(len(POWERS), len(GAINS), -1)
    possible = np.isfinite(by_gain[:, 0]).all(axis=0)
    for k, gain in enumerate(GAINS.tolist()):
        odds = np.exp(by_gain[:, k][:, possible] - by_gain[:, 0][:, possible])
        assert odds == pytest.approx(np.full(odds.shape, 1 / (1 + 3 * gain)), rel=1e-6)


def test_a_rate_that_rises_again_counts_as_low_as_it_has_been() -> None:
    s = np.arange(10.0, 500.0, 10.0)
    down_and_up = np.array([1.0, 600.0, 601.0, 800.0, 801.0, 1600.0]), np.array([1.0, 1.0, 0.1, 0.1, 1.0, 1.0])
    only_down = np.array([1.0, 600.0, 601.0, 1600.0]), np.array([1.0, 1.0, 0.1, 0.1])
    one, other = (
        fed(schedule, s, s**-0.3).first_passage(ROW, np.array([0.1])) for schedule in (down_and_up, only_down)
    )
    assert one == pytest.approx(other, rel=0.05)
