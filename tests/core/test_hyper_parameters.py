"""What a training is trained with: read from anything, without secrets, bounded, and kept by the journal."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lightning_core.core.codec import decode_event, encode_event
from lightning_core.core.events import Cell, Report, Submit
from lightning_core.core.jobs import Job
from lightning_core.core.limits import MAX_HYPER_PARAMETERS, MAX_SHOWN_VALUE
from lightning_core.core.reported import HIDDEN, hyper_parameters
from lightning_core.core.targets import LossTarget
from lightning_core.history.history import History
from lightning_core.scheduler.settings import Settings
from lightning_core.server.host import Host
from lightning_core.storage.journals.journal import Journal
from lightning_core.storage.journals.thinning import thinned

ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters()) | st.builds(object),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text() | st.integers(), inner, max_size=4),
    max_leaves=20,
)


@given(st.dictionaries(st.text(st.characters()) | st.integers(), ANYTHING, max_size=5))
def test_whatever_a_module_saved_is_told_and_comes_back(config: dict[Any, Any]) -> None:
    told = hyper_parameters(config)
    report = Report("a", 1, 1, 0, 0, 0.0, hyper_parameters=told)
    assert decode_event(encode_event(report)) == report
    assert all(len(text) <= MAX_SHOWN_VALUE for row in told for text in row)


def test_what_is_no_text_is_told_by_its_type_and_what_cannot_be_sent_by_its_code() -> None:
    told = hyper_parameters({"on": object(), "names": [object(), 1], "half": "\ud800", "none": None, "lr": 0.1})
    assert dict(told) == {
        "on": "<object>", "names": "<object>, 1", "half": "\\ud800", "none": "None", "lr": "0.1"
    }  # fmt: skip


def test_secrets_are_left_out_wherever_they_are_nested() -> None:
    told = dict(
        hyper_parameters({"api_key": "abc", "hub": {"token": "abc", "name": "x"}, "all": [{"password": "abc"}]})
    )
    assert told == {"api_key": HIDDEN, "hub.token": HIDDEN, "hub.name": "x", "all.0.password": HIDDEN}
    config = {"model": {"class_path": "m.Net", "init_args": {"lr": 0.1, "auth_token": "abc"}}}
    assert dict(hyper_parameters(config, is_config=True)) == {
        "model.class_path": "m.Net", "model.lr": "0.1", "model.auth_token": HIDDEN,
    }  # fmt: skip


def test_many_and_long_values_are_bounded_where_they_arrive_too() -> None:
    many = {f"value-{k}": "x" * 5000 for k in range(5000)}
    told = hyper_parameters(many)
    assert len(told) == MAX_HYPER_PARAMETERS
    assert told[0][1] == "x" * (MAX_SHOWN_VALUE - 1) + "…"
    report = Report("a", 1, 1, 0, 0, 0.0, hyper_parameters=told)
    text = json.dumps(json.loads(encode_event(report)) | {"hyper_parameters": list(many.items())})
    assert decode_event(text) == report
    with pytest.raises(ValueError, match="must be read back from JSON as it is, got hyper_parameters"):
        encode_event(replace(report, hyper_parameters=tuple(many.items())))
    with pytest.raises(ValueError, match="unpack"):
        decode_event('{"kind":"report","job":"a","incarnation":1,"number":1,"version":0,"batches":0,"busy":0.0,'
                     '"hyper_parameters":[[1]]}')  # fmt: skip


def test_the_journal_keeps_them_when_it_is_thinned(tmp_path: Path) -> None:
    path = tmp_path / "journal.db"
    host = Host(Settings(policy="edf"), path)
    host.handle(Submit((Job("a", 1e6, LossTarget("loss", 0.1)),)))
    for number in range(1, 60):
        told = (("lr", "0.1"),) if number == 1 else None
        cells = (Cell(number, 10 * number, 2.0 / number),)
        host.handle(Report("a", 1, number, 10**6, 10 * number, float(number), cells, hyper_parameters=told))
    host.close()
    with Journal.open(path, read_only=True) as journal:
        entries, settings = list(journal.entries()), journal.settings()
        assert History.read(journal).jobs[0].hyper_parameters == (("lr", "0.1"),)
    kept = thinned(entries, settings)
    assert len(kept) < len(entries)
    assert sum("hyper_parameters" in entry.event for entry in kept) == 1
