"""The wheel as a new user has it: unpacked, outside the repository, with and without the extras."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
import tomllib
import zipfile
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

import pytest

from lightning_core import autojoin
from lightning_core.core.answers import State, Verdict
from lightning_core.node.processes import started
from lightning_core.variables import KNOWN, PREFIX, unknown
from tests.conftest import ROOT
from tests.socket_servers import Pool, socket_pool


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(folder), str(ROOT)]
    done = subprocess.run(command, check=True, capture_output=True, text=True, timeout=300)
    assert "absent from the `packages` configuration" not in done.stdout + done.stderr
    [wheel] = folder.glob("*.whl")
    return wheel


@pytest.fixture(scope="module")
def unpacked(wheel: Path) -> Path:
    """The folder into which the wheel is unpacked: once, for what Python compiles stays there."""
    folder = wheel.parent / "site"
    zipfile.ZipFile(wheel).extractall(folder)
    return folder


class Python:
    """Python with the wheel first on its path, in an empty folder.

    Args:
        unpacked: Folder of the unpacked wheel.
        folder: Working directory.
    """

    def __init__(self, unpacked: Path, folder: Path) -> None:
        self.unpacked, self.site, self.here, self.home = unpacked, folder / "site", folder / "here", folder / "home"
        self.site.mkdir()
        self.here.mkdir()

    def __call__(
        self, *words: str, without: Iterable[str] = (), more: Mapping[str, str] | None = None
    ) -> subprocess.CompletedProcess[str]:
        """Run Python to its end, as if some modules were not installed, with additional variables."""
        (self.site / "sitecustomize.py").write_text(HIDDEN.format(names=set(without)))
        env = {key: value for key, value in os.environ.items() if not key.startswith(PREFIX)}
        path = os.pathsep.join(map(str, (self.site, self.unpacked)))
        env |= {"PYTHONPATH": path, "LIGHTNING_CORE_HOME": str(self.home), "OMP_NUM_THREADS": "1"} | dict(more or {})
        line = [sys.executable, *words]
        return subprocess.run(line, cwd=self.here, env=env, capture_output=True, text=True, timeout=300)


@pytest.fixture
def python(unpacked: Path, tmp_path: Path) -> Python:
    return Python(unpacked, tmp_path)


# Importing such a module fails, and searching for it finds none.
HIDDEN = "import sys; sys.modules.update(dict.fromkeys({names}))"


def test_the_wheel_has_every_package_and_nothing_else(wheel: Path) -> None:
    names = [name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name]
    listed = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["packages"]
    assert {str(Path(name).parent).replace("/", ".") for name in names} == set(listed)
    assert {"lightning_core/py.typed", "lightning_core/parts/market/data/a100.csv"} <= set(names)


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
    """Provide a pool that scripts find by its folder."""
    with socket_pool(tmp_path / "pool") as made:
        body = {"pid": os.getpid(), "started": started(os.getpid()), "temp": "/nowhere", "socket": str(made.path)}
        (made.folder / "head.json").write_text(json.dumps(body | {"token": "/nowhere/token"}))
        yield made


@pytest.mark.parametrize("package", ["lightning.pytorch", pytest.param("pytorch_lightning", marks=pytest.mark.nightly)])
def test_the_environment_joins_the_trainers_of_both_packages(package: str, python: Python, pool: Pool) -> None:
    told = {"JOB": "line", "DEADLINE": "60s", "TARGET": "val_loss<=0.01", "POOL": str(pool.folder)}
    done = python("-c", SCRIPT, package, more={PREFIX + name: text for name, text in told.items()})
    assert "stopped True" in done.stdout, done.stderr
    _, [job] = pool.do(pool.actor.status())
    assert (job.name, job.state, job.verdict) == ("line", State.ENDED, Verdict.MET)
    assert job.batches >= 20


@pytest.mark.nightly
def test_a_trainer_of_the_other_package_takes_the_callback_in_a_list_only(python: Python) -> None:
    code = (
        "import pytorch_lightning as pl; from lightning_core import BatchTarget;"
        "from lightning_core.callbacks import CoreCallback; one = CoreCallback('a', '1m', BatchTarget(3));"
        "pl.Trainer(callbacks=[one], logger=False); pl.Trainer(callbacks=one)"
    )
    last = python("-c", code).stderr.splitlines()[-1]
    assert last.startswith("TypeError: pass CoreCallback in a list, callbacks=[CoreCallback(...)]")


# ---------------------------------------------------------------------------------------------------- missing packages


# Packages that the extras install, directly or not.
EXTRAS = ("torch", "lightning", "lightning_utilities", "typing_extensions", "ray", "jsonargparse", "filterpy",
          "matplotlib", "rich", "argcomplete")  # fmt: skip
BUNDLE = """
jobs:
  a: {deadline: 20m, target: {loss: 0.3}, work: 10m, model: x.Y}
  b: {deadline: 30m, target: {batches: 500}, work: 12m, model: x.Y}
"""


@pytest.mark.parametrize(
    ("words", "code", "told"),
    [
        ("policies", 0, ""),
        pytest.param("simulate bundle.yaml --policy fifo,triage", 0, "", marks=pytest.mark.nightly),
        ("simulate bundle.yaml --policy laira", 2, "need filterpy, which is not installed; run pip install"),
        pytest.param("market backtest --work 20 --deadline 4", 0, "", marks=pytest.mark.nightly),
        pytest.param(
            "plan bundle.yaml",
            2,
            "not installed; run pip install -c constraints.txt '.[launch]' in the clone",
            marks=pytest.mark.nightly,
        ),
        ("run bundle.yaml", 2, "not installed; run pip install -c constraints.txt '.[launch]' in the clone"),
        pytest.param(
            "up",
            2,
            "not installed; run pip install -c constraints.txt '.[launch]' in the clone",
            marks=pytest.mark.nightly,
        ),
        ("status", 2, "no pool is up"),
    ],
)
def test_commands_without_extras_work_or_name_the_extra(words: str, code: int, told: str, python: Python) -> None:
    (python.here / "bundle.yaml").write_text(BUNDLE)
    done = python("-m", "lightning_core.cli.main", *words.split(), without=EXTRAS)
    assert done.returncode == code, done.stderr
    assert told in done.stderr
    assert done.stderr.count("\n") == (code == 2)


@pytest.mark.parametrize("missing", ["torch", "lightning"])
def test_the_callback_without_its_extra_names_it(missing: str, python: Python) -> None:
    done = python("-c", "from lightning_core.callbacks import CoreCallback", without=(missing,))
    assert done.stderr.splitlines()[-1] == (
        f"ModuleNotFoundError: lightning_core.callbacks needs {missing}, which is not installed:"
        " run pip install -c constraints.txt '.[lightning]' in the clone"
    )


def test_the_other_project_of_that_import_name_is_warned_about(python: Python) -> None:
    other = python.site / "lightning_core-0.5.7.dist-info"
    other.mkdir()
    (other / "METADATA").write_text("Metadata-Version: 2.2\nName: lightning-core\nVersion: 0.5.7\n")
    words = "the package lightning-core 0.5.7 is also installed: another project with a module called lightning_core"
    done = python("-m", "lightning_core.cli.main", "policies")
    assert (done.returncode, done.stderr.count("\n")) == (0, 1)
    assert done.stderr.startswith(f"warning: {words}; which of the two")
    assert words in python("-c", "import lightning_core.callbacks", without=EXTRAS).stderr


# ---------------------------------------------------------------------------------------------------- the example

NEXT = re.compile(r"  (lightning-core|python) (.*)")


@pytest.mark.nightly
def test_init_writes_an_example_that_runs_as_it_says(python: Python) -> None:
    done = python("-m", "lightning_core.cli.main", "init", "my example", without=EXTRAS)
    assert (done.returncode, done.stderr) == (0, "")
    assert "The last two need torch" in done.stdout
    (simulate, script) = [
        shlex.split(words) for program, words in NEXT.findall(done.stdout) if program == "python" or "simulate" in words
    ]
    done = python("-m", "lightning_core.cli.main", *simulate, "--json", "all.json", without=EXTRAS)
    assert done.returncode == 3, done.stderr
    met = {name: told["met"] for name, told in json.loads((python.here / "all.json").read_text())["policies"].items()}
    assert met["fifo"] < met["triage"] == 4  # the point of the example
    done = python(*script)
    assert done.returncode == 0, done.stderr
    assert "lightning_core: script: met: target met" in done.stdout

    again = python("-m", "lightning_core.cli.main", "init", "my example", without=EXTRAS)
    assert again.returncode == 2
    assert again.stderr == "error: my example: is not an empty folder, and nothing is overwritten; name a new one\n"


@pytest.mark.nightly
@pytest.mark.cluster
def test_the_example_s_bundle_runs_as_init_says(python: Python) -> None:
    done = python("-m", "lightning_core.cli.main", "init", "my example")
    assert "The last two need" not in done.stdout
    [run] = [shlex.split(words) for _, words in NEXT.findall(done.stdout) if words.startswith("run ")]
    bundle = python.here / "my example" / "bundle.yaml"
    bundle.write_text(re.sub(r"deadline: .*", "deadline: 10m", bundle.read_text()))
    bundle.write_text(re.sub(r"target: .*", "target: {batches: 20}", bundle.read_text()))
    done = python("-m", "lightning_core.cli.main", *run)
    assert "5 of 5 met" in done.stdout, done.stdout + done.stderr


# ---------------------------------------------------------------------------------------------------- variables


def test_a_misspelt_variable_is_named_by_a_script_and_by_a_command(python: Python) -> None:
    words = "LIGHTNING_CORE_DEADLIN is not a variable of lightning_core; did you mean 'LIGHTNING_CORE_DEADLINE'?"
    wrong = {"LIGHTNING_CORE_DEADLIN": "2h"}
    script = "from lightning_core.autojoin import callbacks; callbacks(); callbacks()"  # as a Trainer that is made
    assert python("-c", script, more=wrong).stderr.count(words) == 1
    done = python("-m", "lightning_core.cli.main", "policies", more=wrong)
    assert done.stderr == f"warning: {words}\n"


def test_every_variable_in_the_sources_is_in_the_table() -> None:
    sources = [path.read_text() for folder in ("lightning_core", "callbacks") for path in (ROOT / folder).rglob("*.py")]
    named = {name for text in sources for name in re.findall(rf"\b{PREFIX}([A-Z_]+[A-Z])\b", text)}
    assert named - {"DEADLIN"} <= set(KNOWN)  # that one is of an example
    assert {f"{PREFIX}{name}" for name in KNOWN} >= set(
        re.findall(r"``(LIGHTNING_CORE_[A-Z_]+)``", autojoin.__doc__ or "")
    )
    assert unknown({f"{PREFIX}{name}": "" for name in KNOWN}) == []
