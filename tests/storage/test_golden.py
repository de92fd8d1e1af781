"""What was decided once is decided again: a change of decisions that is not meant is noticed."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from lightning_core.policies.classic import Edf, Fifo
from tests.storage.golden import FOLDER, KINDS, Golden, are_same, every, of_parts, record

GOLDEN = sorted(path.stem for path in FOLDER.glob("*.gz"))


def test_each_policy_and_estimator_has_a_golden_journal() -> None:
    assert every().keys() - of_parts().keys() == set(GOLDEN), "`python -m tests.storage.golden NAME` records one"


@pytest.mark.promise("R23")
@pytest.mark.parametrize("name", GOLDEN)
def test_the_events_of_a_golden_journal_lead_to_the_same_decisions(name: str) -> None:
    other = Golden.read(FOLDER / f"{name}.gz").first_other()
    assert not other, f"{other}; if it is meant, `python -m tests.storage.golden {name}` records it anew"


@pytest.mark.parametrize("name", [name for name in GOLDEN if name.endswith("-kinds")])
def test_the_kinds_of_a_golden_journal_survive_in_its_saved_state(name: str) -> None:
    golden = Golden.read(FOLDER / f"{name}.gz")
    assert not golden.first_other(from_saved=True)
    # It has a move between kinds: a job on the fast device, and then on a slow one.
    grants = [one for step in golden.steps for one in step.decisions if one[0] == "Grant" and one[4]]
    on = {job: {KINDS[device] for grant in grants if grant[1] == job for device in grant[4]} for _, job, *_ in grants}
    assert ({"fast", "slow"} in on.values()) == (name == "triage-kinds")


def test_a_recording_is_the_same_each_time(tmp_path: Path) -> None:
    for number in (1, 2):
        record(every()["uniform"]).write(tmp_path / f"{number}.gz")
    assert (tmp_path / "1.gz").read_bytes() == (tmp_path / "2.gz").read_bytes()


def test_the_first_other_decision_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    golden = Golden.read(FOLDER / "edf.gz")
    monkeypatch.setattr(Edf, "queue", Fifo.queue)
    assert re.match(r"event \d+ at \d+\.\d s, {.*}: was \[.*\], is \[", golden.first_other())


def test_decisions_differ_by_more_than_the_last_digits() -> None:
    assert are_same([["Grant", "a", 0.5]], [["Grant", "a", 0.5 + 1e-12]])
    assert not are_same([["Grant", "a", 0.5]], [["Grant", "a", 0.501]])
    assert not are_same([["Grant", "a", 0.5]], [["Grant", "b", 0.5]])
    assert not are_same([["Grant", "a", 0.5]], [])
