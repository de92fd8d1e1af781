"""What was decided once is decided again: a change of decisions that is not meant is noticed."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from lightning_core.core.saved_state import StateError
from lightning_core.parts.market.online.start_up_times import StartUpTimes
from lightning_core.policies.classic import Edf, Fifo
from tests.storage.golden import FOLDER, Golden, are_same, every, owned, record
from tests.storage.golden_controllers import controlled

GOLDEN = sorted(path.stem for path in FOLDER.glob("*.gz"))


def test_each_policy_and_estimator_has_a_golden_journal() -> None:
    assert every().keys() == set(GOLDEN), "`python -m tests.storage.golden NAME` records one"


@pytest.mark.promise("R23")
@pytest.mark.parametrize("name", GOLDEN)
def test_the_events_of_a_golden_journal_lead_to_the_same_decisions(name: str) -> None:
    other = Golden.read(FOLDER / f"{name}.gz").first_other()
    assert not other, f"{other}; if it is meant, `python -m tests.storage.golden {name}` records it anew"


@pytest.mark.promise("R23")
@pytest.mark.parametrize("name", sorted(controlled() | owned()))
def test_a_state_that_controllers_have_saved_is_taken_on_and_leads_to_the_same_decisions(name: str) -> None:
    golden = Golden.read(FOLDER / f"{name}.gz")
    assert golden.saved is not None
    assert golden.saved.state["divider" if name in owned() else "controllers"]
    assert not golden.first_other(from_saved=True)


@pytest.mark.parametrize("name", ["uniform", pytest.param("market-chain", marks=pytest.mark.nightly)])
def test_a_recording_is_the_same_each_time(name: str, tmp_path: Path) -> None:
    for number in (1, 2):
        record(every()[name]).write(tmp_path / f"{number}.gz")
    assert (tmp_path / "1.gz").read_bytes() == (tmp_path / "2.gz").read_bytes()


def test_the_first_other_decision_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    golden = Golden.read(FOLDER / "edf.gz")
    monkeypatch.setattr(Edf, "plan", Fifo.plan)
    assert re.match(r"event \d+ at \d+\.\d s, {.*}: was \[.*\], is \[", golden.first_other())


def test_a_controller_that_plans_otherwise_or_saves_another_state_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    golden = Golden.read(FOLDER / "market-chain.gz")
    monkeypatch.setattr(StartUpTimes, "seconds", 0.0)
    for from_saved in (False, True):
        assert re.match(r"event \d+ at .* was \[", golden.first_other(from_saved=from_saved))
    monkeypatch.setattr(StartUpTimes, "STATE", ("_lags",))
    with pytest.raises(StateError, match="StartUpTimes must have the state"):
        golden.first_other(from_saved=True)


def test_decisions_differ_by_more_than_the_last_digits() -> None:
    assert are_same([["Grant", "a", 0.5]], [["Grant", "a", 0.5 + 1e-12]])
    assert not are_same([["Grant", "a", 0.5]], [["Grant", "a", 0.501]])
    assert not are_same([["Grant", "a", 0.5]], [["Grant", "b", 0.5]])
    assert not are_same([["Grant", "a", 0.5]], [])
