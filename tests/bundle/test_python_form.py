"""Jobs of a bundle that are written in Python, with classes in place of class paths."""

from __future__ import annotations

import enum
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from lightning.pytorch.callbacks import EarlyStopping

from lightning_core import Bundle, LossTarget, Settings, Training
from lightning_core.bundle.lightning_config import build
from lightning_core.bundle.problems import BundleError
from lightning_core.core.jobs import Capability
from tests import tiny
from tests.tiny import Line, Points

UNTYPED: Any = Line
STOPPER = partial(EarlyStopping, monitor="val_loss", patience=7)


def training(name: str = "a", model: Any = Line, **more: Any) -> Training:
    return Training(name, **{"deadline": "1h30m", "target": "loss<=0.35", "model": model, "data": Points, **more})


def test_classes_stand_for_their_class_paths() -> None:
    trainer = {"callbacks": [STOPPER], "max_epochs": 3}
    python = Bundle([training(model=partial(Line, 0.01, pause=0.5), trainer=trainer, devices=2, retries=1)],
                    Settings(devices=2))  # fmt: skip
    stopper = {
        "class_path": "lightning.pytorch.callbacks.early_stopping.EarlyStopping",
        "init_args": {"monitor": "val_loss", "patience": 7},
    }
    section = {
        "model": {"class_path": "tests.tiny.Line", "init_args": {"lr": 0.01, "pause": 0.5}},
        "data": "tests.tiny.Points",
        "trainer": trainer | {"callbacks": [stopper]},
        "deadline": "1h30m", "target": "loss<=0.35", "devices": 2, "retries": 1,
    }  # fmt: skip
    file = Bundle.from_dict({"pool": {"devices": 2}, "jobs": {"a": section}}, python.folder)
    assert python == file
    assert Capability.RESIZE not in python.jobs[0].job.can
    assert Bundle.from_dict(python.to_dict(), python.folder) == python


def test_a_worker_builds_the_objects(tmp_path: Path) -> None:
    spec = training(model=partial(Line, lr=0.01), trainer={"callbacks": [STOPPER], "logger": False}).read(Settings())
    cli = build(spec.config, "cpu", tmp_path, EarlyStopping("other"))
    assert isinstance(cli.model, Line)
    assert cli.model.lr == 0.01
    assert isinstance(cli.datamodule, Points)
    trainer: Any = cli.trainer
    assert [(one.monitor, one.patience) for one in trainer.early_stopping_callbacks] == [("val_loss", 7), ("other", 3)]


class Local(Line):
    """Stands here under another name than its own, or in no file."""


class Size(enum.Enum):
    SMALL = 1


def local() -> type:
    class Inner(Line):
        pass

    return Inner


FILE = "put it into a file, such as train.py, and import it from there"


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"model": lambda: Line()}, "jobs.a.model: must be a class, or functools.partial of one, .* got a lambda"),
        ({"model": local}, "got the function tests.bundle.test_python_form.local"),
        ({"model": partial(local)}, "got the function tests.bundle.test_python_form.local"),
        ({"model": local()}, f"local.<locals>.Inner is not at the top level of a file, .*; {FILE}"),
        ({"model": Line()}, r"jobs.a.model: must be a class, .* such as partial\(Line, ...\).* got an object of Line"),
        ({"model": partial(UNTYPED, lr=Size.SMALL)}, r"jobs.a.model.lr: .* got an object of Size"),
        ({"model": partial(Line, *range(9))}, r"jobs.a.model: partial of .*Line.*: too many positional arguments"),
        ({"model": partial(UNTYPED, 0.1, lr=0.2)}, "multiple values for argument 'lr'"),
        ({"trainer": {"callbacks": [STOPPER()]}}, r"jobs.a.trainer.callbacks\[0\]: .* an object of EarlyStopping"),
        ({"trainer": {"devices": 2}}, "jobs.a.trainer.devices: is set by the launcher; remove it"),
        ({"devices": 2}, "jobs.a.devices: must be at most the pool's 1"),
        ({"memory": "80GB"}, "jobs.a.memory: "),
        ({"target": None}, "jobs.a: target is missing"),
        ({"deadlin": "9m"}, "jobs.a.deadlin: unknown key 'deadlin'; did you mean 'deadline'"),
    ],
)
def test_what_no_worker_can_rebuild_is_refused_with_its_place(more: dict[str, Any], words: str) -> None:
    with pytest.raises(BundleError, match=words):
        Bundle([training(**more)], Settings(device_memory=10**9))


@pytest.mark.parametrize("module", ["__main__", "tests.tiny"])
def test_a_class_that_its_module_does_not_hold_is_refused(module: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a notebook or script, or replaced since: by a decorator, or by a module that was loaded again."""
    monkeypatch.setattr(Local, "__module__", module)
    words = "Local is in the notebook or script that runs" if module == "__main__" else "tests.tiny.Local is not at the"
    with pytest.raises(BundleError, match=f"jobs.a.model: {words}.*; {FILE}"):
        training(model=Local).read(Settings())


def test_jobs_of_one_name_are_refused() -> None:
    with pytest.raises(BundleError, match="jobs: 'a' is there twice"):
        Bundle([training(), training()])


def test_terms_may_be_objects_too() -> None:
    [spec] = Bundle([training(target=LossTarget("loss", 0.1), deadline=60, model="tests.tiny.Line")]).jobs
    assert (spec.job.deadline, spec.job.target) == (60.0, LossTarget("loss", 0.1))
    assert spec.config["model"] == {"class_path": f"{tiny.__name__}.Line"}
