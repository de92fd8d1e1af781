"""Golden journals with parts of the library: the same events lead to the same decisions, from a saved state too."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from lightning_core.core.saved_state import StateError
from lightning_core.parts.market.online.start_up_times import StartUpTimes
from tests.storage.golden import Golden, of_parts, path_of, record

NAMES = sorted(of_parts())


def test_each_has_a_file() -> None:
    files = path_of("plan").parent.glob("*.gz")
    assert sorted(path.stem for path in files) == NAMES, "`python -m tests.storage.golden NAME` records one"


@pytest.mark.promise("R23")
@pytest.mark.parametrize("name", NAMES)
def test_the_events_of_a_golden_journal_lead_to_the_same_decisions(name: str) -> None:
    other = Golden.read(path_of(name)).first_other()
    assert not other, f"{other}; if it is meant, `python -m tests.storage.golden {name}` records it anew"


@pytest.mark.promise("R23")
@pytest.mark.parametrize("name", NAMES)
def test_a_state_that_controllers_have_saved_is_taken_on_and_leads_to_the_same_decisions(name: str) -> None:
    golden = Golden.read(path_of(name))
    assert golden.saved is not None
    assert golden.saved.state["division" if name.endswith("-owners") else "controllers"]
    assert not golden.first_other(from_saved=True)


@pytest.mark.nightly
def test_a_recording_is_the_same_each_time(tmp_path: Path) -> None:
    for number in (1, 2):
        record(of_parts()["market-chain"]).write(tmp_path / f"{number}.gz")
    assert (tmp_path / "1.gz").read_bytes() == (tmp_path / "2.gz").read_bytes()


def test_a_controller_that_plans_otherwise_or_saves_another_state_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    golden = Golden.read(path_of("market-chain"))
    monkeypatch.setattr(StartUpTimes, "seconds", 0.0)
    for from_saved in (False, True):
        assert re.match(r"event \d+ at .* was \[", golden.first_other(from_saved=from_saved))
    monkeypatch.setattr(StartUpTimes, "STATE", ("_lags",))
    with pytest.raises(StateError, match="StartUpTimes must have the state"):
        golden.first_other(from_saved=True)
