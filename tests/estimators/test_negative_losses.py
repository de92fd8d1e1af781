"""Losses that can be negative: as targets, in forecasts, under every policy, and in views."""

from __future__ import annotations

import warnings
from pathlib import Path

import numpy as np
import pytest

from lightning_core.bundle.problems import BundleError
from lightning_core.cluster.bundle import Bundle
from lightning_core.core.answers import End, Verdict
from lightning_core.core.arrays import LEVELS, FloatArray
from lightning_core.core.commands import SetTerms
from lightning_core.core.events import Cell, Report, Submit
from lightning_core.core.jobs import Job
from lightning_core.core.protocols import JoinRefusedError
from lightning_core.core.targets import LossTarget
from lightning_core.estimators import ESTIMATORS, Posterior
from lightning_core.estimators.above_floor import MAX_CELLS, AboveFloor
from lightning_core.history.history import History
from lightning_core.policies import POLICIES
from lightning_core.report.page import page
from lightning_core.scheduler.scheduler import Scheduler
from lightning_core.scheduler.settings import Settings
from lightning_core.simulation.scenario import SimulatedJob
from lightning_core.simulation.simulation import Simulation
from lightning_core.storage.journals.journal import Journal
from lightning_core.storage.journals.replay import replay
from tests.conftest import ROOT
from tests.examples import day_and_night

NLL = LossTarget("nll", -3.0)
# Policies that use ratios of losses, or whose own estimator does.
OF_RATIOS = {"laira", "successive_halving", "lara", "lrf", "etf"}


def curve(
    cells: int = 200, floor: float = -3.1, scale: float = 8.0, slope: float = 0.6
) -> tuple[FloatArray, FloatArray]:
    """A loss that crosses zero and passes -3.0, with noise."""
    position = np.arange(1, cells + 1, dtype=np.float64) * 10.0
    noise = np.random.default_rng(0).normal(0.0, 0.02, cells)
    loss: FloatArray = scale * position**-slope + floor + noise
    return position, loss


def with_cells(target: LossTarget, values: list[float], policy: str = "triage") -> Scheduler:
    scheduler = Scheduler(Settings(policy))
    scheduler.handle(Submit((Job("a", 100.0, target),)), 0.0)
    shown = tuple(Cell(n, 10 * n, value) for n, value in enumerate(values, 1))
    scheduler.handle(Report("a", 1, 1, 1, 10 * len(values), 5.0, shown), 5.0)
    return scheduler


# ----------------------------------------------------------------------------------------------------------- scheduling


def test_a_negative_loss_meets_a_negative_target() -> None:
    scheduler = with_cells(NLL, [4.0, 0.0, -2.9, -3.0, -3.1, -3.1, -3.0, -3.2])
    [status] = scheduler.status()
    assert (status.verdict, status.rejected, status.cells) == (Verdict.MET, 0, 7)
    assert status.value == pytest.approx(-3.02)
    assert status.best == status.value == status.loss


@pytest.mark.parametrize("policy", ["triage", "laira", "lara", "edf"])
def test_a_loss_at_or_below_zero_is_at_a_target_above_it(policy: str) -> None:
    with warnings.catch_warnings(), np.errstate(all="raise", under="ignore"):
        warnings.simplefilter("error")
        scheduler = with_cells(
            LossTarget("loss", 0.1), [2.0, 1.0, 0.5, 0.4, -0.3, 0.6, 0.0, 0.3, 0.5, 0.6, 0.7], policy
        )
        scheduler.handle(Report("a", 1, 2, 1, 130, 7.0, (Cell(12, 120, -9.0), Cell(13, 130, 0.5))), 7.0)
    [status] = scheduler.status()
    assert status.rejected == 0
    assert status.verdict is Verdict.MET


# By day one of each answer, and those that forecast in a way of their own.
@pytest.mark.parametrize("policy", day_and_night(sorted(POLICIES), ["decor", "etf", "fixed", "laira", "triage"]))
def test_every_policy_accepts_a_negative_target_or_gives_a_reason(policy: str) -> None:
    args = {"shares": [0.5, 0.5]} if policy == "fixed" else {}
    settings = Settings(policy, args)
    position, loss = curve()
    jobs = [SimulatedJob(Job(name, 300.0, NLL), position, loss, 20.0) for name in "ab"]
    with np.errstate(all="raise", under="ignore"), warnings.catch_warnings():
        warnings.simplefilter("error")
        done = Simulation(settings, jobs).run()
    verdicts = {one.verdict for one in done.jobs}
    refusal = settings.refusal(NLL)
    assert (refusal is not None) == (policy in OF_RATIOS)
    if refusal is None:
        assert verdicts == {Verdict.MET}
    else:
        assert verdicts == {Verdict.CANCELLED}
        assert "uses ratios of losses, so the target must be above 0, got -3; use the policy triage" in str(refusal)


def test_published_estimators_refuse_negative_losses_and_the_default_takes_them() -> None:
    refused = {name for name in ESTIMATORS if Settings("edf", estimator=name).refusal(NLL) is not None}
    assert refused == set(ESTIMATORS) - {"posterior"}
    assert "the estimator dkf" in str(Settings("edf", estimator="dkf").refusal(LossTarget("elbo", 0.0)))
    assert Settings("lara", estimator="posterior").refusal(NLL) is None
    assert Settings("laira").refusal(LossTarget("acc", at_least=-3.0)) is None  # what falls is its error


def test_a_bundle_with_an_unsupported_target_is_refused_before_it_starts(tmp_path: Path) -> None:
    (tmp_path / "b.yaml").write_text(
        "policy: POLICY\njobs:\n  a:\n    model: tests.tiny.Line\n    deadline: 9s\n    target: nll<=-3\n"
    )
    text = (tmp_path / "b.yaml").read_text()
    (tmp_path / "b.yaml").write_text(text.replace("POLICY", "triage"))
    bundle = Bundle.from_file(tmp_path / "b.yaml")
    with pytest.raises(BundleError, match=r"jobs.a.target: the policy laira uses ratios of losses"):
        bundle.with_policy("laira")
    with pytest.raises(BundleError, match=r"jobs.a.target: the estimator weighted uses"):
        bundle.check_targets(Settings("lara"))
    (tmp_path / "b.yaml").write_text(text.replace("POLICY", "laira"))
    with pytest.raises(BundleError, match=r"b.yaml:6:5: jobs.a.target: the policy laira uses .* got -3; use the"):
        Bundle.from_file(tmp_path / "b.yaml")


def test_a_script_with_a_negative_target_is_refused_with_a_reason() -> None:
    from lightning_core.server.clients.local_client import LocalClient

    with pytest.raises(JoinRefusedError, match="a: the policy laira uses ratios of losses"):
        LocalClient(Settings("laira")).join(Job("a", 60.0, NLL), "cpu")


def test_an_unsupported_amendment_keeps_the_target() -> None:
    scheduler = with_cells(LossTarget("nll", 0.5), [2.0, 1.5], "laira")
    answers = scheduler.handle(SetTerms("a", target=NLL), 6.0)
    assert not any(isinstance(answer, End) for answer in answers)
    assert scheduler.job("a").target == LossTarget("nll", 0.5)
    with pytest.raises(ValueError, match="uses ratios of losses"):
        scheduler.check_command(SetTerms("a", target=NLL), 6.0)


# ----------------------------------------------------------------------------------------------------------- forecasts


def shown(bank: AboveFloor, row: int, position: FloatArray, loss: FloatArray) -> None:
    for at, one in zip(position.tolist(), loss.tolist(), strict=True):
        bank.observe(row, at, one)


def medians(moved: float, part: float) -> tuple[FloatArray, FloatArray]:
    """Return the forecast and the true work left to a later loss, for all recordings, moved down."""
    from benchmarks.curves.bundles import recordings
    from lightning_core.simulation.recorded_curves import load_curves

    bank, said, true = AboveFloor(Posterior), [], []
    pool = [one for one in recordings(load_curves(ROOT / "lightning_core" / "recorded")) if len(one.loss) >= 100]
    bank.grow(len(pool))
    for row, one in enumerate(pool):
        n, end = round(part * len(one.loss)), round(3 * part * len(one.loss))
        target = one.smooth[end - 1]
        if target >= one.smooth[n - 1]:
            continue
        down = moved * float(one.loss[0])
        bank.aim(row, target - down)
        shown(bank, row, one.position[:n], one.loss[:n] - down)
        [passage] = bank.first_passage(np.array([row]), np.array([target - down]))
        said.append(np.sqrt(passage[9] * passage[10]) - one.position[n - 1])
        true.append(one.position[np.argmax(one.smooth <= target)] - one.position[n - 1])
    return np.maximum(said, 1.0), np.array(true)


def test_a_recorded_curve_moved_below_zero_is_forecast_nearly_as_the_original() -> None:
    errors: list[list[float]] = [[], []]
    for part in (0.05, 0.1, 0.2):
        said, true = medians(0.0, part)
        moved, same = medians(2.0, part)
        further, _ = medians(10.0, part)
        np.testing.assert_allclose(further, moved, rtol=1e-3)  # the distance by which it was moved does not matter
        assert same == pytest.approx(true)
        for these, forecast in zip(errors, (said, moved), strict=True):
            these += np.abs(np.log(forecast / true)).tolist()
    before, after = map(np.median, errors)
    print(f"median |ln error| of the work left at 5 to 20 % seen: {after:.2f} moved down, {before:.2f} as it was")
    assert after < before + 0.15


def test_forecasts_of_positive_curves_are_unchanged_bit_for_bit() -> None:
    plain, curves = Posterior(), AboveFloor(Posterior)
    plain.grow(2)
    curves.grow(2)
    curves.aim(1, -3.0)
    position, loss = curve(floor=0.1)
    for s, one in zip(position.tolist(), loss.tolist(), strict=True):
        plain.observe(np.array([0]), np.array([s]), np.array([one]))
        curves.observe(0, s, one)
        curves.observe(1, s, one - 4.0)
    wanted = plain.first_passage(np.array([0]), np.array([0.2]))
    both = curves.first_passage(np.array([0, 1]), np.array([0.2, -3.0]))
    np.testing.assert_array_equal(both[:1], wanted)
    np.testing.assert_array_equal(curves.first_passage(np.array([0]), np.array([0.2])), wanted)
    assert np.isfinite(both[1, :9]).all()


@pytest.mark.parametrize("spike", [1.0, 1e3, 1e6])
def test_a_spike_at_the_start_is_forgotten(spike: float) -> None:
    position, loss = curve(300, scale=8.0, slope=0.5, floor=-3.3)
    loss[:3] += spike
    truth = (8.0 / 0.3) ** 2
    bank = AboveFloor(Posterior)
    bank.grow(1)
    bank.aim(0, -3.0)
    shown(bank, 0, position[:40], loss[:40])
    [passage] = bank.first_passage(np.array([0]), np.array([-3.0]))
    assert truth / 2 < passage[9] < 2 * truth


def test_forecasts_are_nan_while_unknown_and_follow_a_changed_target() -> None:
    bank = AboveFloor(Posterior)
    bank.grow(3)
    rows = np.arange(3)
    bank.aim(1, -1.0)
    assert np.isnan(bank.first_passage(rows, np.array([0.5, -1.0, 0.5]))).all()
    position, loss = curve()
    shown(bank, 1, position, loss)
    near = bank.first_passage(rows, np.array([0.5, -1.0, 0.5]))
    bank.aim(1, -3.05)
    far = bank.first_passage(rows, np.array([0.5, -3.05, 0.5]))
    assert near.shape == far.shape == (3, len(LEVELS))
    assert near[1, 9] < far[1, 9]
    bank.aim(2, 0.5)
    shown(bank, 2, position[:5], loss[:5])
    bank.aim(2, -3.0)  # the cells from before the floor was known are gone
    assert np.isnan(bank.first_passage(rows, np.array([0.5, -3.05, -3.0]))[2]).all()


@pytest.mark.parametrize(
    "losses",
    [
        [(-2.0) ** n for n in range(900)],  # both signs, ever larger
        [-(2.0**n) for n in range(900)],
        [-3.0] * 50,
        [1e300, -1e300] * 20,
        [0.0] * 20,
        [1e-300, -1e-300] * 20,
    ],
)
def test_hostile_losses_raise_no_error_and_cost_little(losses: list[float]) -> None:
    bank = AboveFloor(Posterior)
    bank.grow(1)
    bank.aim(0, -3.0)
    with np.errstate(all="ignore"), warnings.catch_warnings():
        warnings.simplefilter("error")
        for n, loss in enumerate(losses, 1):
            bank.observe(0, float(n), loss)
        [passage] = bank.first_passage(np.array([0]), np.array([-3.0]))
    assert passage.shape == (len(LEVELS),)
    assert bank._used < 500


def test_a_long_curve_is_kept_short() -> None:
    bank, whole = AboveFloor(Posterior), Posterior()
    for one in (bank, whole):
        one.grow(1)
    bank.aim(0, -3.0)
    position, loss = curve(3000)
    shown(bank, 0, position, loss)
    kept = bank._raised[0]
    assert len(kept.positions) <= MAX_CELLS
    assert kept.positions[-1] == position[-1]
    assert np.diff(kept.positions).min() > 0


# ---------------------------------------------------------------------------------------------------------- views


def test_a_run_with_negative_losses_is_shown(tmp_path: Path) -> None:
    position, loss = curve()
    jobs = [
        SimulatedJob(Job(target.metric, 60.0, target), position, loss, 20.0)
        for target in (NLL, LossTarget("elbo", -90.0))
    ]
    Simulation(Settings(), jobs, journal=tmp_path / "journal.db").run()
    with Journal.open(tmp_path / "journal.db", read_only=True) as again:
        scheduler = replay(again).scheduler
        history = History.read(again)
    assert scheduler.status()[0].value == pytest.approx(-3.0, abs=0.1)
    text = page(history)
    assert "nan" not in text
    assert "nll &lt;= -3" in text or "nll <= -3" in text
