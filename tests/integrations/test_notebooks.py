"""What ``%load_ext lightning_core`` adds to IPython, and loops that are left by a cell; a kernel that restarts."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import textwrap
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from ipykernel.kernelspec import make_ipkernel_cmd
from IPython.core.interactiveshell import InteractiveShell
from IPython.utils.capture import capture_output
from jupyter_client.kernelspec import KernelSpec
from jupyter_client.manager import KernelManager
from torch.utils.data import DataLoader, TensorDataset
from traitlets.config import Config

import lightning_core
from lightning_core.core.answers import JobStatus, State, Verdict
from lightning_core.core.events import WorkerExited
from lightning_core.core.jobs import Job
from lightning_core.core.targets import BatchTarget
from lightning_core.pool import magics
from lightning_core.pool.cell_script import script_of
from lightning_core.server.clients.socket_client import SocketClient
from tests.callbacks.test_callback import fit
from tests.conftest import ROOT
from tests.socket_servers import Pool, found_pool
from tests.tiny import Line, Points
from tests.waiting import PATIENCE, until

PREFIX = "LIGHTNING_CORE_"


class Ran(NamedTuple):
    """What a cell has raised, printed and displayed."""

    error: BaseException | None
    said: str
    shown: list[dict[str, str]]
    value: object


class Notebook:
    """A shell of IPython in this process, as one of a notebook: another program shows what it displays."""

    def __init__(self) -> None:
        self.shell = InteractiveShell.instance(config=Config(HistoryManager={"enabled": False}))
        self.shell.kernel = object()
        self.run("%load_ext lightning_core")

    def run(self, cell: str) -> Ran:
        with capture_output() as captured:
            result = self.shell.run_cell(textwrap.dedent(cell).strip())
        shown = [output.data for output in captured.outputs]
        error = result.error_before_exec or result.error_in_exec
        return Ran(error, captured.stdout + captured.stderr, shown, result.result)

    def close(self) -> None:
        self.shell.restore_sys_module_state()
        InteractiveShell.clear_instance()


@pytest.fixture
def notebook(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Notebook]:
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))
    monkeypatch.setenv(f"{PREFIX}POOL", "local")
    made = Notebook()
    yield made
    made.close()


@pytest.fixture
def pool(monkeypatch: pytest.MonkeyPatch) -> Iterator[Pool]:
    """A pool of one device, which the notebook finds; one job has it at a time."""
    with found_pool(policy="fifo") as made:
        monkeypatch.setenv(f"{PREFIX}POOL", str(made.path.parent))
        yield made


def jobs(pool: Pool, name: str) -> list[JobStatus]:
    return [job for job in pool.do(pool.actor.status())[1] if job.name == name]


def ends(pool: Pool, name: str) -> list[tuple[Verdict | None, str]]:
    """Return verdict and first words of all jobs of a name; None and no words for one that has not ended."""
    return [
        (job.verdict, str(job.reason).split(":")[0]) if job.state is State.ENDED else (None, "")
        for job in jobs(pool, name)
    ]


def variables() -> dict[str, str]:
    return {name: text for name, text in os.environ.items() if name.startswith(PREFIX)}


# ------------------------------------------------------------------------------------------------------------- %%job


def test_a_plain_loop_in_a_cell_is_a_job_and_the_cell_shows_its_card(notebook: Notebook) -> None:
    before = variables()
    ran = notebook.run("""
        %%job small --deadline 1h --target "loss<=0.5" --weight 2
        value = 1.0
        for batch in run.batches(range(1000)):
            value *= 0.9
            run.log(loss=value)
        mine = (run.name, batch < 999)
        mine""")
    assert ran.error is None
    assert ran.value == ("small", True)
    assert "lightning_core: small: met: target met" in ran.said
    [card] = ran.shown
    assert "<svg" in card["text/html"]
    assert ">met</span>" in card["text/html"]
    assert card["text/plain"].startswith("lightning_core: small: met: target met")
    assert notebook.shell.user_ns["mine"] == ("small", True)
    assert "run" not in notebook.shell.user_ns
    assert variables() == before


def test_what_else_trains_in_a_cell_reads_the_terms_in_the_environment(
    notebook: Notebook, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(f"{PREFIX}ON_MISS", "hold")  # of another job
    before = variables()
    ran = notebook.run("""
        %%job vit --target "val_acc>=0.9 for 2 evaluations" --like old --on-nan stop --on-hold offload
        from lightning_core import autojoin
        [callback] = autojoin.callbacks()
        callback._options.job""")
    assert isinstance(ran.value, Job)
    job = ran.value
    assert (job.name, str(job.target), job.like, str(job.on_nan), str(job.on_hold), str(job.on_miss)) == (
        "vit", "val_acc >= 0.9 for 2 evaluations", "old", "stop", "offload", "continue",
    )  # fmt: skip
    assert variables() == before
    assert "vit: no training took part in the process of the notebook itself: make a Trainer" in ran.said


def test_a_trainer_in_a_cell_joins_and_is_shown(notebook: Notebook, pool: Pool) -> None:
    ran = notebook.run("""
        %%job vit --deadline 1h --target "4 batches"
        import lightning.pytorch as pl
        from tests.tiny import QUIET, Line, Points
        pl.Trainer(max_epochs=9, **QUIET).fit(Line(), Points())""")
    assert ran.error is None
    assert [verdict for verdict, _ in ends(pool, "vit")] == [Verdict.MET]
    assert ["vit" in shown["text/html"] for shown in ran.shown] == [True]


def test_a_cell_that_raises_leaves_nothing_and_its_job_has_ended_by_it(notebook: Notebook, pool: Pool) -> None:
    before = variables()
    notebook.shell.user_ns["run"] = "mine"
    ran = notebook.run("""
        %%job small --deadline 1h --target "loss<=0.5"
        for batch in run.batches(range(1000)):
            run.log(loss=1.0)
            if batch == 20:
                raise ValueError("made to fail")""")
    assert str(ran.error) == "made to fail"
    assert "[... skipping hidden" in ran.said
    assert ends(pool, "small") == [(Verdict.CRASHED, "ValueError")]
    assert len(ran.shown) == 1
    assert notebook.shell.user_ns["run"] == "mine"
    assert variables() == before


def test_an_interrupted_cell_ends_its_job_as_interrupted(notebook: Notebook, pool: Pool) -> None:
    interrupted = notebook.run("""
        %%job small --deadline 1h --target "loss<=0.5"
        for batch in run.batches(range(1000)):
            run.log(loss=1.0)
            if batch == 20:
                raise KeyboardInterrupt""")
    assert isinstance(interrupted.error, KeyboardInterrupt)
    assert ends(pool, "small") == [(Verdict.MISSED, "interrupted by Ctrl-C")]
    again = notebook.run("""
        %%job small --deadline 1h --target "9 batches"
        for batch in run.batches(range(1000)):
            pass""")
    assert again.error is None
    assert ends(pool, "small")[-1][0] is Verdict.MET


def test_a_fabric_whose_loop_is_interrupted_leaves_too(notebook: Notebook, pool: Pool) -> None:
    ran = notebook.run("""
        %%job small --deadline 1h --target "loss<=0.5"
        import torch
        from lightning.fabric import Fabric
        fabric = Fabric(accelerator="cpu")
        model = torch.nn.Linear(1, 1)
        model, optimizer = fabric.setup(model, torch.optim.SGD(model.parameters(), lr=0.1))
        fabric.call("on_train_start")
        for batch in range(30):
            loss = model(torch.zeros(1, 1)).sum() * 0 + 1.0
            fabric.backward(loss)
            optimizer.step()
            fabric.call("on_train_batch_end", {"loss": loss}, None, batch)
        raise KeyboardInterrupt""")
    assert isinstance(ran.error, KeyboardInterrupt)
    assert ends(pool, "small") == [(Verdict.MISSED, "interrupted by Ctrl-C")]
    assert [">missed</span>" in shown["text/html"] for shown in ran.shown] == [True]


def test_a_value_is_shown_unless_a_semicolon_ends_the_cell_and_its_own_run_stays(notebook: Notebook) -> None:
    assert notebook.run('%%job a --target "1 batches"\nlen("four")').value == 4
    assert notebook.run('%%job a --target "1 batches"\nlen("four");').value is None
    notebook.run('%%job a --target "1 batches"\nrun = "of the cell"')
    assert notebook.shell.user_ns["run"] == "of the cell"


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("", "the following arguments are required: NAME, --target"),
        ("a", "the following arguments are required: --target"),
        ('a --target "loss<0.1"', "argument --target: target must be like .*, got 'loss<0.1'"),
        ('a --target "9 batches" --deadline soon', "argument --deadline: must be a duration such as .*, got 'soon'"),
        ('a --target "9 batches" --deadline 2020-01-01T18:00', "deadline: a time must be in the future, got '2020"),
        ('a/b --target "9 batches"', "argument NAME: invalid job name 'a/b': 1 to 63 letters"),
        ('a --target "9 batches" --weight -1', "argument --weight: must be positive and finite, got '-1'"),
        ('a --target "9 batches" --weight heavy', "argument --weight: must be positive and finite, got 'heavy'"),
        ('a --target "9 batches" --on-miss die', "argument --on-miss: invalid choice: 'die' .*continue"),
        ('a --target "9 batches" --hold x', "unknown option: --hold; did you mean '--on-hold'"),
        ('a b --target "9 batches"', "unknown argument: b"),
        ('a --target "9 batches', "No closing quotation: a --target"),
        ('a --target "9 batches" --submit --on-refused hold', "--on-refused is for a cell that trains here"),
        ('a --target "9 batches" --submit', "no pool is up"),
    ],
)
def test_a_mistake_says_rule_and_value_in_a_line_and_nothing_has_run(
    line: str, words: str, notebook: Notebook, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    ran = notebook.run(f"%%job {line}\nhas_run = True")
    assert type(ran.error).__name__ == "UsageError"
    [only] = ran.said.splitlines()
    assert only.startswith("UsageError: %%job: ")
    assert re.search(words, only), only
    assert "has_run" not in notebook.shell.user_ns
    assert not list(tmp_path.glob("*.py"))


def test_a_cell_that_is_no_python_joins_nothing(notebook: Notebook, pool: Pool) -> None:
    ran = notebook.run('%%job a --target "9 batches"\nrun.step(\n')
    assert isinstance(ran.error, SyntaxError)
    assert jobs(pool, "a") == []


def test_help_is_printed_and_magics_can_be_taken_away(notebook: Notebook) -> None:
    ran = notebook.run("%%job --help\nhas_run = True")
    assert ran.error is None
    assert "usage: %%job" in ran.said
    assert "has_run" not in notebook.shell.user_ns
    notebook.run("%unload_ext lightning_core")
    assert {"pool", "job"}.isdisjoint({**notebook.shell.magics_manager.magics["line"]} | dict(
        notebook.shell.magics_manager.magics["cell"]))  # fmt: skip


def test_switched_off_a_cell_runs_as_without_a_job(notebook: Notebook, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(f"{PREFIX}DISABLE", "1")
    ran = notebook.run("""
        %%job a --target "9 batches"
        count = len([batch for batch in run.batches(range(20))])""")
    assert (ran.error, ran.said, ran.shown, notebook.shell.user_ns["count"]) == (None, "", [], 20)


def test_the_cells_of_the_documentation_run(
    notebook: Notebook, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    page = (ROOT / "docs" / "how-to" / "notebooks.md").read_text()
    cells = re.findall(r"^```ipython\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    x = torch.linspace(-1, 1, 64).unsqueeze(1)
    model = torch.nn.Linear(1, 1)
    notebook.shell.user_ns.update(
        vit=Line(), loaders=Points(), width=4, hours=2, torch=torch, model=model,
        loader=DataLoader(TensorDataset(x, 2 * x + 1), batch_size=16),
        optimizer=torch.optim.SGD(model.parameters(), lr=0.1),
    )  # fmt: skip
    told = [notebook.run(cell) for cell in cells if "--submit" not in cell]
    assert [ran.error for ran in told] == [None] * 4
    shown = "".join(data["text/html"] for ran in told for data in ran.shown)
    assert re.findall(r"<b>(.*?)</b> <span.*?>(\w+)</span>", shown) == [
        ("vit", "missed"), ("line", "met"), ("vit-4", "missed"),
    ]  # fmt: skip
    [submitted] = [cell for cell in cells if "--submit" in cell]
    line, _, rest = submitted.partition("\n")
    assert magics.job_parser().parse_line(line.removeprefix("%%job ")).submit
    assert rest in script_of("vit", rest, rest)


# ---------------------------------------------------------------------------------------------------------- --submit


class Submitted:
    """A pool that takes bundles; the rest is that of a live one (tests/cluster/test_scripts_live.py)."""

    def __init__(self, pool: lightning_core.Pool, *, is_far: bool = False) -> None:
        self._pool, self.is_far, self.bundles = pool, is_far, list[Any]()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._pool, name)

    def __enter__(self) -> Submitted:
        return self

    def __exit__(self, *_: object) -> None:
        self._pool.close()

    def submit(self, bundle: Any) -> None:
        self.bundles.append(bundle)


@pytest.fixture
def submitted(pool: Pool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Submitted:
    monkeypatch.chdir(tmp_path)
    made = Submitted(lightning_core.Pool.connect())
    monkeypatch.setattr(lightning_core.Pool, "connect", lambda where: made)
    return made


def test_a_submitted_cell_is_a_script_beside_the_notebook(notebook: Notebook, submitted: Submitted) -> None:
    ran = notebook.run("""
        %%job gan --deadline 2h --target "loss<=0.1" --weight 3 --submit
        has_run = True
        for batch in run.batches(range(9)):
            run.log(loss=1.0)""")
    assert ran.error is None
    path = Path("gan.cell.py").resolve()
    assert ran.said.startswith("gan: submitted to the pool at ")
    assert ran.said.endswith(f"which runs {path}\n")
    [bundle] = submitted.bundles
    [spec] = bundle.jobs
    assert (spec.job.name, str(spec.job.target), spec.job.deadline, spec.job.weight, spec.script) == (
        "gan", "loss <= 0.1", 7200.0, 3.0, "gan.cell.py",
    )  # fmt: skip
    assert bundle.folder == path.parent
    text = path.read_text()
    assert "run = lightning_core.track()\nhas_run = True\n" in text
    assert "has_run" not in notebook.shell.user_ns
    notebook.run('%%job gan --target "1 batches" --submit\nprint(1)')  # the job before has ended
    assert path.read_text().splitlines()[1:] == ["print(1)"]


def test_a_cell_that_cannot_be_submitted_says_why(notebook: Notebook, pool: Pool, submitted: Submitted) -> None:
    line = '%%job gan --target "9 batches" --submit\n'
    assert "must be plain Python, without %magics" in notebook.run(f"{line}%time 1").said
    Path("gan.cell.py").write_text("of the user\n")
    assert "gan.cell.py must be written, and is another file" in notebook.run(f"{line}1").said
    client = SocketClient(pool.path)
    client.join(Job("gan", 60.0, BatchTarget(9)), "cpu")
    assert "the name 'gan' is taken by a job that has not ended" in notebook.run(f"{line}1").said
    client.close()
    submitted.is_far = True
    assert "--submit needs a pool that is named by its folder" in notebook.run(f"{line}1").said
    assert submitted.bundles == []
    assert Path("gan.cell.py").read_text() == "of the user\n"


# ------------------------------------------------------------------------------------------------------------- %pool


def test_the_table_of_the_pool_that_is_found(notebook: Notebook, pool: Pool) -> None:
    client = SocketClient(pool.path)
    client.join(Job("other", 60.0, BatchTarget(9)), "cpu")
    ran = notebook.run("%pool --once")
    assert (ran.error, ran.said) == (None, "")
    [table] = ran.shown
    assert "<b>other</b>" in table["text/html"]
    head, row = table["text/plain"].splitlines()
    assert head.split()[:3] == ["job", "verdict", "state"]
    assert row.split()[0] == "other"
    # A terminal cannot update it: it is shown once, and not waited for.
    notebook.shell.kernel = None
    assert notebook.run(f"%pool {pool.path.parent}").shown[0]["text/plain"].splitlines()[1].split()[0] == "other"
    client.close()


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("%pool /nowhere", "UsageError: %pool: /nowhere: there is no pool; `lightning-core up --folder /nowhere`"),
        ("%pool --seconds x", "UsageError: %pool: argument --seconds: must be a number of seconds of at least 0"),
        ("%pool --once --seconds 3", "UsageError: %pool: argument --seconds: not allowed with argument --once"),
        ("%pool http://192.0.2.1:1", "UsageError: %pool: "),
        ("%pool", "no pool is up; `lightning-core up` in a terminal brings one up"),
    ],
)
def test_without_a_pool_a_line_says_what_to_do(line: str, words: str, notebook: Notebook) -> None:
    [only] = notebook.run(line).said.splitlines()
    assert only.startswith(words)


# ------------------------------------------------------------------------------------- loops that no `with` closes

LOOP = """
import lightning_core
mine = lightning_core.track("{name}", "1h", "loss<=0.01")
for batch in range({batches}):
    mine.step(loss=1.0)
"""


def test_a_loop_ends_with_the_cell_that_uses_it_and_raises(notebook: Notebook, pool: Pool) -> None:
    notebook.run(LOOP.format(name="plain", batches=20))
    assert ends(pool, "plain") == [(None, "")]
    notebook.run("1 / 0")  # which has nothing to do with it
    assert ends(pool, "plain") == [(None, "")]
    ran = notebook.run("mine.step(loss=1.0)\nraise KeyError('lost')")
    assert isinstance(ran.error, KeyError)
    assert ends(pool, "plain") == [(Verdict.CRASHED, "KeyError")]
    notebook.run("mine.step(loss=1.0)")  # does nothing
    assert ends(pool, "plain") == [(Verdict.CRASHED, "KeyError")]
    notebook.run(LOOP.format(name="plain", batches=20))
    assert ends(pool, "plain")[-1] == (None, "")
    notebook.run("mine.close()")


def test_a_loop_that_was_left_makes_room_for_another(notebook: Notebook, pool: Pool) -> None:
    for name in ("first", "first", "second"):
        notebook.run(LOOP.format(name=name, batches=20))
    assert ends(pool, "first") == 2 * [(Verdict.MISSED, "its training ended")]
    assert ends(pool, "second") == [(None, "")]
    fit(lightning_core.CoreCallback("third", "1h", "4 batches"), max_epochs=1)
    assert ends(pool, "second") == [(Verdict.MISSED, "its training ended")]
    assert ends(pool, "third")[0][0] is Verdict.MET


def test_a_loop_that_goes_on_is_not_taken_for_one_that_was_left(notebook: Notebook, pool: Pool) -> None:
    """A part of it that trains in its cell, or a loop in another thread."""
    notebook.run(LOOP.format(name="outer", batches=20))
    notebook.run("""
        mine.step(loss=1.0)
        with lightning_core.track("part", "1h", "5 batches") as inner:
            for batch in inner.batches(range(9)):
                pass
        mine.step(loss=1.0)""")
    assert ends(pool, "outer") == [(None, "")]
    assert jobs(pool, "part") == []  # it has trained within the grant of the other
    notebook.run("mine.close()")
    go_on = threading.Event()
    notebook.shell.user_ns["go_on"] = go_on
    notebook.run("""
        import threading
        def train():
            beside = lightning_core.track("beside", "1h", "loss<=0.01")
            beside.step(loss=1.0)
            began.set()
            go_on.wait()
            beside.close()
        began = threading.Event()
        thread = threading.Thread(target=train)
        thread.start()
        began.wait()""")
    notebook.run("raise ValueError")
    notebook.run(LOOP.format(name="other", batches=3) + "mine.close()")
    assert ends(pool, "beside") == [(None, "")]
    go_on.set()
    notebook.shell.user_ns["thread"].join(PATIENCE)
    assert ends(pool, "beside")[0][0] is Verdict.MISSED


TWICE = """
import lightning_core
for number in range(2):
    run = lightning_core.track("again", "1h", "loss<=0.01")
    for batch in range(5):
        run.step(loss=1.0)
run.close()
with lightning_core.track("whole", "1h", "loss<=0.01") as whole:
    whole.step(loss=1.0)
    part = lightning_core.track("whole", "1h", "loss<=0.01")
    part.step(loss=1.0)
"""


def test_a_second_loop_of_a_name_ends_the_first_one_of_a_script_unless_it_is_a_part_of_it(pool: Pool) -> None:
    subprocess.run([sys.executable, "-c", TWICE], cwd=ROOT, check=True, timeout=PATIENCE, capture_output=True)
    assert ends(pool, "again") == 2 * [(Verdict.MISSED, "its training ended")]
    assert ends(pool, "whole") == [(Verdict.MISSED, "its training ended")]


# ---------------------------------------------------------------------------------------------------- a real kernel

LONG = """
%%job big --deadline 1h --target "loss<=0.001"
import time
for batch in run.batches(range(10**6)):
    run.log(loss=1.0)
    time.sleep(0.01)
"""


class Kernel:
    """A kernel of Jupyter in a process of its own."""

    def __init__(self, folder: Path) -> None:
        self._manager = KernelManager(connection_file=str(folder / "kernel.json"))
        # Of this Python, whatever kernels the user has.
        self._manager._kernel_spec = KernelSpec(argv=make_ipkernel_cmd())
        self._manager.start_kernel(cwd=str(ROOT), env={**os.environ, "IPYTHONDIR": str(folder)})
        self._connect()

    def _connect(self) -> None:
        self._client = self._manager.client()
        self._client.start_channels()
        self._client.wait_for_ready(timeout=PATIENCE)

    @property
    def pid(self) -> int:
        provisioner: Any = self._manager.provisioner
        return int(provisioner.pid)

    def begin(self, cell: str) -> str:
        message: str = self._client.execute(cell)
        return message

    def end(self, message: str) -> tuple[str, str]:
        """Wait until a cell has ended; return how, and what it has printed."""
        said = ""
        while True:
            got = self._client.get_iopub_msg(timeout=PATIENCE)
            if got["parent_header"].get("msg_id") != message:
                continue
            if got["msg_type"] == "stream":
                said += got["content"]["text"]
            if got["msg_type"] == "status" and got["content"]["execution_state"] == "idle":
                break
        while True:  # earlier replies, of connecting, may stand before it
            got = self._client.get_shell_msg(timeout=PATIENCE)
            if got["parent_header"].get("msg_id") == message:
                return got["content"].get("ename", got["content"]["status"]), said

    def run(self, cell: str) -> tuple[str, str]:
        return self.end(self.begin(cell))

    def interrupt(self) -> None:
        self._manager.interrupt_kernel()

    def restart(self) -> None:
        self._client.stop_channels()
        self._manager.restart_kernel(now=True)
        self._connect()

    def close(self) -> None:
        self._client.stop_channels()
        self._manager.shutdown_kernel(now=True)


def test_a_kernel_that_is_interrupted_or_restarts_leaves_nothing(pool: Pool, tmp_path: Path) -> None:
    kernel, other = Kernel(tmp_path), SocketClient(pool.path)
    try:
        assert kernel.run("%load_ext lightning_core") == ("ok", "")
        running = kernel.begin(LONG)
        until(lambda: [job.share for job in jobs(pool, "big")] == [1.0] and jobs(pool, "big")[0].batches > 5)
        kernel.interrupt()
        assert kernel.end(running)[0] == "KeyboardInterrupt"
        assert ends(pool, "big") == [(Verdict.MISSED, "interrupted by Ctrl-C")]
        # The next cell is a job again; another one waits for its device.
        kernel.begin(LONG)
        until(lambda: len(jobs(pool, "big")) == 2 and jobs(pool, "big")[1].batches > 5)
        reply = other.join(Job("other", 3600.0, BatchTarget(10**6)), "cpu")
        assert jobs(pool, "other")[0].share == 0.0
        before = kernel.pid
        kernel.restart()
        until(lambda: jobs(pool, "other")[0].share == 1.0, 10.0)
        assert ends(pool, "big")[1] == (Verdict.CRASHED, "its process has exited")
        with pytest.raises(ProcessLookupError):
            os.killpg(before, 0)
        other.left(WorkerExited("other", reply.incarnation))
        # The kernel is new, and the name is free.
        assert kernel.run("import os; print([name for name in os.environ if 'CORE_JOB' in name])") == ("ok", "[]\n")
        assert kernel.run("%load_ext lightning_core") == ("ok", "")
        how, said = kernel.run(LONG.replace("loss<=0.001", "9 batches"))
        assert (how, "met: " in said, "taken" in said) == ("ok", True, False)
        assert ends(pool, "big")[2][0] is Verdict.MET
    finally:
        kernel.close()
        other.close()
