"""The wheel as a newcomer has it: unpacked, outside the repository, with and without the extras."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
import tomllib
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from lightning_core import autojoin
from lightning_core.drivers.connect import started
from lightning_core.types import State, Verdict
from lightning_core.variables import KNOWN, PREFIX, unknown
from tests.conftest import ROOT
from tests.doors import Pool

Python = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(folder), str(ROOT)]
    done = subprocess.run(command, check=True, capture_output=True, text=True, timeout=300)
    assert "absent from the `packages` configuration" not in done.stdout + done.stderr
    [wheel] = folder.glob("*.whl")
    return wheel


@pytest.fixture
def python(wheel: Path, tmp_path: Path) -> Python:
    """Python with the wheel first on its path, in an empty folder; ``without`` names modules that are not installed."""
    site = tmp_path / "site"
    zipfile.ZipFile(wheel).extractall(site)
    here = tmp_path / "here"
    here.mkdir()

    def run(*words: str, without: tuple[str, ...] = (), **more: str) -> subprocess.CompletedProcess[str]:
        (site / "sitecustomize.py").write_text(HIDDEN.format(names=set(without)))
        env = {key: value for key, value in os.environ.items() if not key.startswith(PREFIX)}
        env |= {"PYTHONPATH": str(site), "LIGHTNING_CORE_HOME": str(tmp_path / "home"), "OMP_NUM_THREADS": "1"} | more
        line = [sys.executable, *words]
        return subprocess.run(line, cwd=here, env=env, capture_output=True, text=True, timeout=300)

    return run


HIDDEN = """
import sys
class Hidden:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {names}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)
sys.meta_path.insert(0, Hidden())
"""


def test_every_package_and_nothing_else(wheel: Path) -> None:
    names = [name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name]
    listed = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["packages"]
    assert {str(Path(name).parent).replace("/", ".") for name in names} == set(listed)
    assert {"lightning_core/py.typed", "lightning_core/market/data/a100.csv"} <= set(names)


# ---------------------------------------------------------------------------------------------------- two Lightnings

SCRIPT = """
import sys, importlib, time, torch
pl = importlib.import_module(sys.argv[1])
from torch.utils.data import DataLoader, TensorDataset

class Line(pl.LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(1, 1)
    def training_step(self, batch, batch_idx):
        time.sleep(0.005)
        return torch.nn.functional.mse_loss(self.layer(batch[0]), batch[1])
    def validation_step(self, batch, batch_idx):
        self.log("val_loss", torch.nn.functional.mse_loss(self.layer(batch[0]), batch[1]))
    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), 0.1)

pl.seed_everything(1)
x = torch.rand(640, 1)
data = TensorDataset(x, 2 * x + 1)
trainer = pl.Trainer(max_epochs=200, logger=False, enable_checkpointing=False, enable_progress_bar=False,
                     enable_model_summary=False, accelerator="cpu")
trainer.fit(Line(), DataLoader(data, batch_size=32), DataLoader(data, batch_size=64))
print("stopped", trainer.should_stop, "after epoch", trainer.current_epoch)
"""


@pytest.fixture
def pool(tmp_path: Path) -> Iterator[Pool]:
    """A pool that scripts find by its folder."""
    with tempfile.TemporaryDirectory(prefix="lc-") as folder:
        made = Pool(tmp_path / "pool", Path(folder) / "door")
        body = {"pid": os.getpid(), "started": started(os.getpid()), "temp": "/nowhere", "socket": str(made.path)}
        (made.folder / "head.json").write_text(json.dumps(body | {"token": "/nowhere/token"}))
        yield made
        made.close()


@pytest.mark.parametrize("package", ["lightning.pytorch", "pytorch_lightning"])
def test_the_environment_joins_the_trainers_of_both_packages(package: str, python: Python, pool: Pool) -> None:
    told = {"JOB": "line", "DEADLINE": "60s", "TARGET": "val_loss<=0.01", "POOL": str(pool.folder)}
    done = python("-c", SCRIPT, package, **{PREFIX + name: text for name, text in told.items()})
    assert "stopped True" in done.stdout, done.stderr
    _, [job] = pool.do(pool.actor.status())
    assert (job.name, job.state, job.verdict) == ("line", State.ENDED, Verdict.MET)
    assert job.batches >= 20


def test_a_trainer_of_the_other_package_takes_the_callback_in_a_list_alone(python: Python) -> None:
    code = (
        "import pytorch_lightning as pl; from lightning_core import BatchTarget;"
        "from lightning_core.callbacks import CoreCallback; one = CoreCallback('a', '1m', BatchTarget(3));"
        "pl.Trainer(callbacks=[one], logger=False); pl.Trainer(callbacks=one)"
    )
    last = python("-c", code).stderr.splitlines()[-1]
    assert last.startswith("TypeError: pass CoreCallback in a list, callbacks=[CoreCallback(...)]")


# ---------------------------------------------------------------------------------------------------- what is missing


@pytest.mark.parametrize("missing", ["torch", "lightning"])
def test_the_callback_without_its_extra_says_which(missing: str, python: Python) -> None:
    done = python("-c", "from lightning_core.callbacks import CoreCallback", without=(missing,))
    assert done.stderr.splitlines()[-1] == (
        f"ModuleNotFoundError: lightning_core.callbacks needs {missing}, which is not installed;"
        " run pip install 'lightning-core-learning[lightning]'"
    )


# ---------------------------------------------------------------------------------------------------- variables


def test_a_misspelt_variable_is_named_by_a_script_and_by_a_command(python: Python) -> None:
    words = "LIGHTNING_CORE_DEADLIN is no variable of lightning_core; did you mean 'LIGHTNING_CORE_DEADLINE'?"
    script = "from lightning_core.autojoin import callbacks; callbacks(); callbacks()"  # as a Trainer that is made
    assert python("-c", script, LIGHTNING_CORE_DEADLIN="2h").stderr.count(words) == 1
    done = python("-m", "lightning_core.cli", "policies", LIGHTNING_CORE_DEADLIN="2h")
    assert done.stderr == f"warning: {words}\n"


def test_every_variable_in_the_sources_is_in_the_table() -> None:
    sources = [path.read_text() for folder in ("lightning_core", "callbacks") for path in (ROOT / folder).rglob("*.py")]
    named = {name for text in sources for name in re.findall(rf"\b{PREFIX}([A-Z_]+[A-Z])\b", text)}
    assert named - {"DEADLIN"} <= set(KNOWN)  # that one is of an example
    assert {f"{PREFIX}{name}" for name in KNOWN} >= set(
        re.findall(r"``(LIGHTNING_CORE_[A-Z_]+)``", autojoin.__doc__ or "")
    )
    assert unknown({f"{PREFIX}{name}": "" for name in KNOWN}) == []
