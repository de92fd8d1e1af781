"""A Trainer without the package: switched off, not wanted, broken, half installed, or on another system."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import lightning_core_entry_point
import pytest
import torch
from lightning.fabric.utilities.exceptions import MisconfigurationException

from lightning_core.callbacks import CoreCallback
from lightning_core.callbacks.launched import LaunchedCallback
from lightning_core.core.answers import Grant
from lightning_core.core.reasons import Reason
from lightning_core.core.targets import LossTarget
from tests.callbacks.test_autojoin import RIGHT
from tests.callbacks.test_callback import Script
from tests.conftest import ROOT
from tests.tiny import QUIET, Line, ValidatedPoints

pytestmark = pytest.mark.promise("R32")
TRAIN = """
import sys, lightning.pytorch as pl
sys.path.append(ROOT)
from tests.tiny import QUIET, Line, Points
trainer = pl.Trainer(max_epochs=1, **QUIET)
trainer.fit(Line(), datamodule=Points())
print("steps", trainer.global_step)
print("ours", sorted(name for name in sys.modules if name.startswith("lightning_core")))
"""


def trained(
    environment: dict[str, str], path: str = "", code: str = TRAIN, files: Sequence[str | Path] = ()
) -> subprocess.CompletedProcess[str]:
    """Train a script that knows nothing of the package, in a process with some variables and an import path."""
    code = f"ROOT = {str(ROOT)!r}\n{code}"
    variables = {f"LIGHTNING_CORE_{name}": value for name, value in environment.items()}
    return subprocess.run(
        [sys.executable, "-c", code, *map(str, files)], capture_output=True, text=True, timeout=300, cwd="/",
        env={**{name: value for name, value in os.environ.items() if not name.startswith("LIGHTNING_CORE_")},
             **variables, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"},
    )  # fmt: skip


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("import a_dependency_that_is_gone", "No module named 'a_dependency_that_is_gone'"),
        pytest.param("raise ImportError('cut off in the middle')", "ImportError: cut off in the middle",
                     marks=pytest.mark.nightly),
        pytest.param("from lightning_core.core.jobs import of_a_newer_version",
                     "cannot import name 'of_a_newer_version'", marks=pytest.mark.nightly),
    ],
)  # fmt: skip
def test_an_installation_that_is_broken_costs_an_unchanged_script_nothing(
    tmp_path: Path, content: str, words: str
) -> None:
    """A half-upgraded package, or a dependency that cannot be imported."""
    package = tmp_path / "lightning_core"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "autojoin.py").write_text(content)
    done = trained(RIGHT, str(tmp_path))
    assert done.returncode == 0, done.stderr
    assert "steps 16" in done.stdout
    assert "training continues without lightning_core" in done.stderr
    assert words in done.stderr


def test_what_the_environment_asks_for_in_vain_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {**RIGHT, "DEADLINE": "soon"}.items():
        monkeypatch.setenv(f"LIGHTNING_CORE_{name}", value)
    with pytest.raises(MisconfigurationException, match="LIGHTNING_CORE_DEADLINE"):
        lightning_core_entry_point.callbacks()


def test_one_switch_makes_every_hook_do_nothing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("LIGHTNING_CORE_DISABLE", "1")
    for name, value in RIGHT.items():
        monkeypatch.setenv(f"LIGHTNING_CORE_{name}", value)
    assert lightning_core_entry_point.callbacks() == []
    # What would be refused otherwise is not looked at.
    core = CoreCallback("no name!", "yesterday", None, keep_best=tmp_path / "best")
    said: list[str] = []

    class Watched(CoreCallback):  # type: ignore[misc]
        """Notes each method of ours that is called, but for the hooks themselves."""

        def __getattribute__(self, name: str) -> Any:
            if name.startswith("_") and not name.startswith("__") and callable(object.__getattribute__(self, name)):
                said.append(name)
            return object.__getattribute__(self, name)

    trainer = pl.Trainer(
        **{**QUIET, "max_epochs": 2, "enable_checkpointing": True, "default_root_dir": tmp_path},
        callbacks=[core, Watched("no name!", "yesterday", None)],
    )
    trainer.fit(Line(), datamodule=ValidatedPoints())
    trainer.save_checkpoint(tmp_path / "end.ckpt")
    again = pl.Trainer(**{**QUIET, "max_epochs": 3}, callbacks=[core])
    again.fit(Line(), datamodule=ValidatedPoints(), ckpt_path=tmp_path / "end.ckpt")
    assert (trainer.global_step, again.global_step) == (32, 48)
    assert set(said) <= {"_fit_of", "_serves", "_close", "_begin", "_new_checkpointer", "_generate_state_key"}
    assert (core.verdict, core.forecast, core.directive, core.best_model_path, core.last_checkpoint) == (
        None, None, None, "", None,
    )  # fmt: skip
    assert core._repr_html_() == ""
    assert not (tmp_path / "best").exists()
    assert core._fit is None


@pytest.mark.parametrize("value", ["0", "no", ""])
def test_a_switch_may_say_that_it_is_off(monkeypatch: pytest.MonkeyPatch, value: str) -> None:
    monkeypatch.setenv("LIGHTNING_CORE_DISABLE", value)
    core = CoreCallback("job", "1h", LossTarget("loss", 0.1), pool="local")
    pl.Trainer(**QUIET, max_epochs=1, callbacks=[core]).fit(Line(), datamodule=ValidatedPoints())
    assert core.verdict is not None


# What these systems lack of Python's library: modules, and names of modules.
LACKING: dict[str, tuple[tuple[str, ...], dict[str, str]]] = {
    "darwin": (
        (),
        {
            "os": "sched_getaffinity sched_setaffinity pidfd_open memfd_create posix_fadvise O_PATH O_TMPFILE",
            "socket": "SO_PEERCRED",
        },
    ),
    "win32": (
        ("fcntl", "resource", "pwd", "grp", "termios", "tty", "pty", "posix"),
        {
            "os": "sched_getaffinity sched_setaffinity pidfd_open getuid geteuid getgid getegid getgroups fork setsid "
            "killpg getpgid setpgid O_NONBLOCK O_CLOEXEC O_DIRECTORY O_NOFOLLOW chown fchmod fchown mkfifo statvfs "
            "fstatvfs sysconf wait waitid pread pwrite fdatasync",
            "socket": "AF_UNIX SO_PEERCRED SOCK_SEQPACKET",
            "select": "poll epoll",
            "signal": "SIGKILL SIGHUP SIGUSR1 SIGUSR2 SIGALRM SIGPIPE SIGSTOP SIGCONT SIGQUIT pthread_sigmask",
        },
    ),
}
ELSEWHERE = """
import builtins, importlib, io, sys
sys.path.append({root!r})
import lightning.pytorch as pl, torch, numpy, scipy.optimize, scipy.stats, yaml, torchmetrics, asyncio, subprocess
import concurrent.futures, multiprocessing, tempfile, importlib.metadata
from lightning.pytorch.trainer.connectors import signal_connector
from tests.tiny import QUIET, Line, ValidatedPoints
signal_connector._IS_WINDOWS = {system!r} == "win32"
signal_connector._SignalConnector.teardown = lambda self: None  # it would set a handler for SIGKILL
class Lacking:
    def find_spec(self, name, path=None, target=None):
        if name in {modules!r}:
            raise ModuleNotFoundError(name, name=name)
for name in {modules!r}:
    sys.modules.pop(name, None)
sys.meta_path.insert(0, Lacking())
for module, names in {names!r}.items():
    for name in names.split():
        vars(importlib.import_module(module)).pop(name, None)
read = builtins.open
def opened(path, *args, **options):
    if str(path).startswith(("/proc", "/sys")):
        raise FileNotFoundError(2, "no such file", str(path))
    return read(path, *args, **options)
builtins.open = io.open = opened
sys.platform = {system!r}
from lightning_core.callbacks import CoreCallback
core = CoreCallback("job", "1h", "val_loss<=0.05")
trainer = pl.Trainer(max_epochs=500, callbacks=[core], **QUIET)
trainer.fit(Line(pause=0.002), datamodule=ValidatedPoints())
print("verdict", core.verdict, "with Ray" if "ray" in sys.modules else "without Ray")
"""


@pytest.mark.parametrize("system", ["win32", pytest.param("darwin", marks=pytest.mark.nightly)])
def test_on_another_system_a_script_trains_alone(system: str, tmp_path: Path) -> None:
    """As far as that can be seen here: without what Python has on Linux only. Nor does a local scheduler need Ray."""
    modules, names = LACKING[system]
    code = ELSEWHERE.format(root=str(ROOT), system=system, modules=modules, names=names)
    environment = {**os.environ, "LIGHTNING_CORE_HOME": str(tmp_path), "OMP_NUM_THREADS": "1"}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300, env=environment)
    assert done.returncode == 0, done.stderr[-3000:]
    assert "lightning_core: job: met" in done.stdout
    assert "verdict met without Ray" in done.stdout


READS = """
import torch

class Gone:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("lightning_core", "callbacks"):
            raise ModuleNotFoundError(f"No module named {name!r}")

sys.meta_path.insert(0, Gone())
from tests.tiny import ValidatedPoints
for path in sys.argv[1:]:
    stored = torch.load(path, weights_only=True)
    for restricted in (True, False, None):
        trainer = pl.Trainer(max_epochs=6, **QUIET)
        model = Line.load_from_checkpoint(path, weights_only=restricted)
        trainer.fit(model, datamodule=ValidatedPoints(), ckpt_path=path, weights_only=restricted)
        print(stored["global_step"], trainer.global_step)
"""


@pytest.fixture(scope="module")
def without_us(tmp_path_factory: pytest.TempPathFactory) -> subprocess.CompletedProcess[str]:
    """A process without a variable of ours, which trains, and then continues from checkpoints without us.

    One checkpoint is of the script's own, one the best model, and one of a launched job.
    """
    tmp_path = tmp_path_factory.mktemp("checkpoints")
    own = pl.callbacks.ModelCheckpoint(tmp_path, save_last=True)
    core = CoreCallback("a", "1h", "val_loss<=1e-9", pool="local", keep_best=tmp_path / "best")
    options = QUIET | {"enable_checkpointing": True, "max_epochs": 3}
    pl.Trainer(**options, callbacks=[own, core]).fit(Line(), datamodule=ValidatedPoints())
    client = Script(Grant("job", 1, 1.0, (0,), Reason("fixed_share")))
    folder = tmp_path / "job"
    release = LaunchedCallback("job", LossTarget("loss", 1e-9), client=client, folder=folder, save_every=1e-9)
    alone = options | {"enable_checkpointing": False}
    pl.Trainer(**alone, callbacks=[release]).fit(Line(), datamodule=ValidatedPoints())
    files = [tmp_path / "last.ckpt", core.best_model_path, folder / "last.ckpt"]
    for file, key in zip(files, ["CoreCallback"] * 2 + ["LaunchedCallback"], strict=True):
        assert key in torch.load(file, weights_only=True)["callbacks"]
    return trained({}, code=TRAIN + READS, files=files)


def test_without_a_variable_of_ours_a_trainer_imports_nothing_of_us(
    without_us: subprocess.CompletedProcess[str],
) -> None:
    steps, ours = without_us.stdout.splitlines()[:2]
    assert steps == "steps 16", without_us.stderr[-3000:]
    assert ours == "ours ['lightning_core_entry_point']"  # which Lightning asks, on the standard library alone


def test_a_checkpoint_with_our_state_loads_without_us(without_us: subprocess.CompletedProcess[str]) -> None:
    assert without_us.returncode == 0, without_us.stderr[-3000:]
    found = [line.split() for line in without_us.stdout.splitlines()[2:]]
    assert len(found) == 9
    assert {trained for _, trained in found} == {"96"}, found
