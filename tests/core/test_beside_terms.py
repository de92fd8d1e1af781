"""Whether a job may train beside others: how it is said, and that it survives the wire, the journal and the state."""

from __future__ import annotations

from pathlib import Path

import pytest

from lightning_core.core.codec import decode_event, encode_event, job_from_dict, job_to_dict
from lightning_core.core.events import Submit
from lightning_core.core.jobs import Beside, Job
from lightning_core.core.targets import BatchTarget
from lightning_core.scheduler.scheduler import Scheduler
from lightning_core.scheduler.settings import Settings
from lightning_core.storage.journals.journal import Journal

NEVER = Job("a", 60.0, BatchTarget(100), beside=Beside.NEVER)


def test_a_word_will_do() -> None:
    assert Job("a", 60.0, BatchTarget(100), beside="never") == NEVER  # type: ignore[arg-type]
    assert isinstance(Settings(beside="always").beside, Beside)  # type: ignore[arg-type]


@pytest.mark.parametrize("word", ["sometimes", "", "NEVER", None])
def test_an_unknown_word_is_refused_with_the_rule(word: str) -> None:
    for make in (lambda: Job("a", 60.0, BatchTarget(100), beside=word), lambda: Settings(beside=word)):  # type: ignore[arg-type]
        with pytest.raises(ValueError, match="beside must be one of never, auto, always, got"):
            make()
    with pytest.raises(ValueError, match="beside"):
        job_from_dict({**job_to_dict(NEVER), "beside": word})


def test_it_survives_the_wire() -> None:
    assert job_from_dict(job_to_dict(NEVER)) == NEVER
    event = decode_event(encode_event(Submit((NEVER,))))
    assert isinstance(event, Submit)
    assert event.jobs[0].beside is Beside.NEVER


def test_it_survives_the_state_of_a_scheduler() -> None:
    scheduler = Scheduler(Settings())
    scheduler.handle(Submit((NEVER,)), 0.0)
    again = Scheduler(Settings())
    again.restore(scheduler.state())
    assert again.job("a").beside is Beside.NEVER


def test_the_settings_survive_a_journal(tmp_path: Path) -> None:
    Journal.create(tmp_path / "journal.db", Settings(beside=Beside.NEVER)).close()
    with Journal.open(tmp_path / "journal.db") as journal:
        assert journal.settings().beside is Beside.NEVER
