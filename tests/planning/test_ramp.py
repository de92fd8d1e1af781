"""The controller of one job: the devices that end a known amount of work at its deadline."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lightning_core.core.speedup import SpeedUp
from lightning_core.planning.ramp import ControllerInput, Ramp, RampController, RampSettings
from tests.examples import examples


def follow(
    rule: RampSettings,
    rate: float,
    total: float,
    deadline: float,
    *,
    new_deadline: tuple[float, float] | None = None,
    slower: tuple[float, float] = (1e9, 1.0),
    learned: bool = False,
) -> tuple[float, list[float]]:
    """Simulate a training on a share of one device; return when it ends, and its share second by second.

    Args:
        rule: Rule of its controller.
        rate: Batches per second on the whole device.
        total: Batches of the training.
        deadline: Deadline in seconds.
        new_deadline: Time of a change of the deadline, and the new one.
        slower: Time of a change of the throughput, and its factor.
        learned: Whether the throughput is learned, not given.
    """
    speed = SpeedUp((1,)) if learned else SpeedUp((1,), (rate,))
    controller, done, parts, now, step = RampController(rule, 0.0), 0.0, [], 0.0, 0.1
    while done < total and now < 10 * deadline:
        if new_deadline is not None and now >= new_deadline[0]:
            deadline = new_deadline[1]
        part = controller.step(ControllerInput(now, done, total, deadline, 0.05, 1.0, 0.05), speed)
        parts.append(part)
        more = rate * part * step * (slower[1] if now >= slower[0] else 1.0)
        if learned and more >= 1:
            speed.observe(part, round(more), step * round(more) / more)
        done += more
        now += step
    return now, parts


@pytest.mark.parametrize("factor", [1.2, 1.5, 1.8, 3.0])
@pytest.mark.parametrize("alpha", [0.95, 1.0])
def test_a_job_ends_at_its_deadline_on_the_devices_that_it_needs(factor: float, alpha: float) -> None:
    """A second is a tenth of a per cent: the quantum is 5 % of a device."""
    end, parts = follow(RampSettings(alpha=alpha), 50.0, 50_000, 1000 * factor)
    assert end == pytest.approx(alpha * 1000 * factor, rel=0.005)
    assert sum(parts) / len(parts) == pytest.approx(1 / (alpha * factor), rel=0.01)


def test_the_throughput_is_learned_at_full_share_before_control_begins() -> None:
    controller = RampController(RampSettings(), 0.0)
    assert controller.step(ControllerInput(0.0, 0, 600, 100.0, 0.05, 1.0, 0.05), SpeedUp((1,))) == 1.0
    assert controller.error == 0.0  # there is no ramp yet
    end, parts = follow(RampSettings(alpha=1.0), 50.0, 10_000, 400.0, learned=True)
    assert parts[:10] == [1.0] * 10
    assert max(parts[25:]) <= 0.55
    assert end == pytest.approx(400, rel=0.01)


def test_a_job_that_becomes_slower_still_ends_in_time() -> None:
    end, _ = follow(RampSettings(alpha=0.95), 50.0, 20_000, 600.0, slower=(200.0, 0.8))
    assert 0.95 * 600 * 0.99 <= end <= 600


@pytest.mark.parametrize(("ramp", "mode"), [("rebased", "default"), ("origin", "default"), ("rebased", "paper")])
def test_a_shortened_deadline_is_met(ramp: Any, mode: Any) -> None:
    rule = RampSettings(alpha=1.0, ramp=ramp, mode=mode, gain=0.5, eta=0.1)
    end, _ = follow(rule, 50.0, 20_000, 800.0, new_deadline=(240.0, 640.0))
    assert end == pytest.approx(640, rel=0.02)


def test_a_rebased_ramp_does_not_exceed_the_required_share() -> None:
    """0.5 of a device until 240 of 800 s; 14,000 of 20,000 batches in the 400 s that are left of 640: 0.7."""
    _, rebased = follow(RampSettings(alpha=1.0), 50.0, 20_000, 800.0, new_deadline=(240.0, 640.0))
    _, origin = follow(RampSettings(alpha=1.0, ramp="origin"), 50.0, 20_000, 800.0, new_deadline=(240.0, 640.0))
    assert max(rebased[2300:3000]) <= 0.75
    assert max(origin[2300:3000]) > 0.75


def test_the_published_mode_equals_its_equations() -> None:
    """Eq. 4 and 5 by hand: at 10 s, 100 points in 100 s, nothing done: e = 10, i = 1, d = 0.01 (1 + 10), rounded up."""
    rule = RampSettings(alpha=1.0, period=10.0, mode="paper", gain=0.01, eta=0.1)
    controller, speed = RampController(rule, 0.0), SpeedUp((1,))
    state = ControllerInput(now=0.0, done=0, total=100, deadline=100.0, min_devices=0.05, max_devices=1.0, quantum=0.05)
    assert controller.step(state, speed) == 0.05
    assert controller.step(state._replace(now=5.0), speed) == 0.05  # not before the next step
    assert controller.step(state._replace(now=10.0), speed) == pytest.approx(0.15)
    assert controller.error == pytest.approx(10)
    assert controller.step(state._replace(now=20.0, done=5), speed) == pytest.approx(0.2)  # 0.01 (2.5 + 15) = 0.175


def test_an_error_decays_with_both_poles_at_six_tenths() -> None:
    """e' = (1 - b) e - b i and i' = i + eta e' with b = 0.64 and eta = 0.25: E (1 - 2 k / 3) 0.6^k."""
    rate, period, total = 10.0, 2.0, 10_000
    controller, speed = RampController(RampSettings(alpha=1.0, period=period), 0.0), SpeedUp((1,), (rate,))
    state = ControllerInput(0.0, 0, total, deadline=2000.0, min_devices=0.0, max_devices=1.0, quantum=1e-4)
    done, errors = 0.0, []
    for k in range(13):
        if k == 4:
            done -= 6.0  # batches that are lost: 0.06 %
        share = controller.step(state._replace(now=k * period, done=done), speed)
        errors.append(controller.error)
        done += rate * share * period
    assert errors[:4] == pytest.approx([0.0] * 4, abs=1e-4)
    assert errors[4:] == pytest.approx([0.06 * (1 - 2 * k / 3) * 0.6**k for k in range(9)], abs=1e-4)


def test_the_integral_takes_what_feeding_forward_cannot() -> None:
    """Slower by 30 % after a third, unknown to the speed-up, in twelve steps: 1.4 % late; with eta = 0, 4.4 %."""
    end, _ = follow(RampSettings(alpha=1.0, period=50.0), 50.0, 10_000, 600.0, slower=(200.0, 0.7))
    assert 600 < end <= 600 * 1.02


def test_the_integral_rests_while_a_change_is_pending() -> None:
    """Eq. 4, paper's mode, e = 10 and 15: i = 1.5 if the first step is pending, 2.5 if not; d = 0.01 (i + 15)."""
    state = ControllerInput(now=0.0, done=0, total=100, deadline=100.0, min_devices=0.005, max_devices=1, quantum=0.005)
    for pending, wanted in ((True, 0.165), (False, 0.175)):
        controller = RampController(RampSettings(alpha=1.0, period=10.0, mode="paper", gain=0.01, eta=0.1), 0.0)
        controller.step(state, SpeedUp((1,)))
        controller.step(state._replace(now=10.0, pending=pending), SpeedUp((1,)))
        assert controller.step(state._replace(now=20.0, done=5), SpeedUp((1,))) == pytest.approx(wanted)


def test_the_published_ramp_keeps_its_origin_when_a_deadline_moves() -> None:
    """Eq. 3: 30 % of 100 s are over and done; by a deadline of 80 s, 37.5 % should be."""
    state = ControllerInput(now=0.0, done=0, total=100, deadline=100.0, min_devices=0.05, max_devices=1.0, quantum=0.05)
    for mode, error in (("paper", 7.5), ("default", 0.0)):
        controller = RampController(RampSettings(alpha=1.0, mode=mode), 0.0)  # type: ignore[arg-type]
        controller.step(state, SpeedUp((1,), (2.0,)))
        controller.step(state._replace(now=30.0, done=30, deadline=80.0), SpeedUp((1,), (2.0,)))
        assert controller.error == pytest.approx(error)


def test_the_integral_does_not_wind_up_at_full_share() -> None:
    """Hopelessly behind for 50 steps, then given a deadline far off: it comes down at once."""
    controller = RampController(RampSettings(alpha=1.0, mode="paper", gain=0.02, eta=0.2, ramp="origin"), 0.0)
    state = ControllerInput(now=0.0, done=0, total=100, deadline=50.0, min_devices=0.05, max_devices=1.0, quantum=0.05)
    for now in range(50):
        controller.step(state._replace(now=float(now)), SpeedUp((1,)))
    assert controller.output == 1.0
    assert controller.step(state._replace(now=50.0, done=20, deadline=500.0), SpeedUp((1,))) < 0.35


def test_an_unconfirmed_size_is_requested_again() -> None:
    controller, speed = RampController(RampSettings(alpha=1.0), 0.0), SpeedUp((1,), (10.0,))
    state = ControllerInput(now=0.0, done=0, total=600, deadline=100.0, min_devices=0.05, max_devices=1.0, quantum=0.05)
    first = controller.step(state, speed)
    assert controller.step(state._replace(now=1.0, pending=True), speed) == first
    assert controller.step(state._replace(now=20.0, done=30, pending=True), speed) == first
    assert controller.step(state._replace(now=21.0, done=30), speed) > first


def test_a_ramp_is_linear() -> None:
    ramp = Ramp(10.0, 30.0, 110.0)
    assert ramp.slope == pytest.approx(0.7)
    assert [ramp.at(now) for now in (10.0, 60.0, 110.0, 500.0)] == pytest.approx([30, 65, 100, 100])


def test_a_job_without_safety_margin_ends_at_its_deadline() -> None:
    controller = RampController(RampSettings(alpha=0.9), 0.0)
    assert controller.end(100.0, 50.0) == 90.0
    assert controller.end(100.0, 95.0) == 100.0


@given(st.floats(1.05, 4.0), st.floats(5.0, 500.0), st.sampled_from([0.5, 1.0, 5.0]), st.sampled_from([0.9, 1.0]))
@settings(max_examples=examples(25), deadline=None)
def test_any_feasible_deadline_is_met(factor: float, rate: float, period: float, alpha: float) -> None:
    end, parts = follow(RampSettings(alpha=alpha, period=period), rate, 200 * rate, 200 * factor)
    # If not even the whole device ends it by alpha, its safety margin is used up.
    assert end <= (alpha if alpha * factor > 1.02 else 1.0) * 200 * factor * 1.01 + period
    assert end >= alpha * 200 * factor * 0.97 - period
    assert all(0.05 <= part <= 1.0 for part in parts)


@pytest.mark.parametrize(
    "wrong",
    [{"alpha": 0.0}, {"alpha": 1.1}, {"period": 0.0}, {"mode": "p"}, {"gain": 0.0}, {"eta": 1.0}, {"ramp": "straight"}],
)
def test_a_controller_refuses_invalid_arguments(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=f"{next(iter(wrong))} must be"):
        RampSettings(**wrong)
