"""Scripts remember: a folder of their own without a pool, and what identifies their task."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import lightning.pytorch as pl
import pytest

from lightning_core.agent.reporting import joining
from lightning_core.agent.reporting.joining import class_path
from lightning_core.callbacks import CoreCallback
from lightning_core.callbacks.reading.description import batch_size_of
from lightning_core.server.clients.local_client import LocalClient
from lightning_core.storage.runs.run_store import FILE, RunStore
from tests.callbacks.test_callback import Script, grant, steered
from tests.tiny import QUIET, Line, Points


@pytest.fixture
def clients(monkeypatch: pytest.MonkeyPatch) -> list[LocalClient]:
    made: list[LocalClient] = []

    class Noted(LocalClient):
        def __init__(self, *args: Any, **more: Any) -> None:
            super().__init__(*args, **more)
            made.append(self)

    monkeypatch.setattr(joining, "LocalClient", Noted)
    return made


def fit(name: str, folder: Path, **more: Any) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LIGHTNING_CORE_HISTORY", str(folder))
        callback = CoreCallback(name, "1h", "loss<=1e-9", pool="local", every=5, **more)
    pl.Trainer(callbacks=[callback], max_epochs=20, **QUIET).fit(Line(), Points())


def test_a_script_alone_is_given_its_earlier_runs_of_a_folder(tmp_path: Path, clients: list[LocalClient]) -> None:
    (own := tmp_path / "own").mkdir(mode=0o700)
    fit("one", own / "history")
    fit("two", own / "history")
    fit("three", own / "history", like="nothing that there is")
    assert [client._host.scheduler._table.earlier for client in clients] == [{}, {0: ("one",)}, {}]
    store = RunStore(own / "history" / FILE)
    runs = {run.name: run for run in store.runs()}
    assert runs.keys() == {"one", "two", "three"}
    assert runs["one"].model == "tests.tiny.Line"
    assert runs["one"].metric == "loss"
    assert len(runs["one"].batches) >= 2
    store.close()


def test_a_folder_that_cannot_be_used_stops_no_training(
    tmp_path: Path, clients: list[LocalClient], caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").write_text("")
    fit("one", tmp_path / "file" / "history")
    assert len(clients) == 1
    assert "neither kept nor found" in caplog.text


def test_a_module_of_a_script_is_named_as_if_it_were_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    assert class_path(type(Line())) == "tests.tiny.Line"

    net: pl.LightningModule = type("Net", (Line,), {"__module__": "__main__"})()
    main = ModuleType("__main__")
    main.__file__ = "/somewhere/train.py"
    monkeypatch.setitem(sys.modules, "__main__", main)
    assert class_path(type(net)) == "train.Net"


def test_the_batch_size_is_that_of_the_loader_or_as_lightning_names_it() -> None:
    module, trainer = Line(), pl.Trainer(**QUIET)
    assert batch_size_of(trainer, module) is None
    module.batch_size = 12  # type: ignore[assignment]
    assert batch_size_of(trainer, module) == 12


class Saving(Line):
    """A line that says what it is trained with."""

    def __init__(self, width: int, api_key: str) -> None:
        super().__init__()
        self.save_hyperparameters()


@pytest.mark.parametrize("launched", [False, True])
def test_hyper_parameters_are_told_once_and_without_secrets(launched: bool) -> None:
    script = Script(grant(1, 1.0))
    data = Points()
    data.save_hyperparameters({"shuffle": True})
    core = steered(script, launched=launched)
    pl.Trainer(**QUIET, max_epochs=2, callbacks=[core]).fit(Saving(8, api_key="abc"), datamodule=data)
    told = [report.hyper_parameters for report in script.reports if report.hyper_parameters is not None]
    assert [dict(one) for one in told] == [{"shuffle": "True", "width": "8", "api_key": "(not shown)"}]
