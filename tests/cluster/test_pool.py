"""A pool that outlives the shell: scripts join it, users steer it, it restarts, and scripts survive its end."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import psutil
import pytest

from lightning_core.core.answers import JobStatus, State, Verdict
from lightning_core.node.processes import is_alive
from lightning_core.pool import Pool
from lightning_core.pool.cell_script import submit_cell
from lightning_core.server.clients.socket_client import SocketClient
from lightning_core.server.discovery import read_head
from tests.builders import launched
from tests.conftest import ROOT
from tests.waiting import PATIENCE, until

pytestmark = pytest.mark.cluster

# Seconds in which a connection that is closed is noticed, on such a machine; a worker that is silent has 30.
AT_ONCE = 20.0


class Shell:
    """A terminal.

    Args:
        home: Folder of the user's pool.
    """

    def __init__(self, home: Path) -> None:
        self.home = home
        self.folder = home / "pool"
        hidden = {"RAY_AUTH_MODE", "RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH", "RAY_ADDRESS"}
        self.env = {key: value for key, value in os.environ.items() if key not in hidden}
        self.env |= {"LIGHTNING_CORE_HOME": str(home), "PYTHONPATH": str(ROOT), "HOME": str(home)}
        self.scripts: list[subprocess.Popen[str]] = []

    def python(self, *words: str, **env: str) -> subprocess.CompletedProcess[str]:
        """Run Python; return its output."""
        line = [sys.executable, *words]
        return subprocess.run(line, env=self.env | env, cwd=self.home, capture_output=True, text=True, timeout=400)

    def command(self, *words: str, code: int = 0, **env: str) -> str:
        """Run ``lightning-core``; return its output."""
        done = self.python("-m", "lightning_core.cli.main", *words, **env)
        assert done.returncode == code, done.stdout + done.stderr
        return done.stdout + done.stderr

    def script(self, name: str, batches: int = 10**6, deadline: str = "10m", **env: str) -> subprocess.Popen[str]:
        """Start ``python train.py`` in the background."""
        line = [sys.executable, "-m", "tests.script", name, deadline, str(batches)]
        process = subprocess.Popen(
            line, env=self.env | env, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        self.scripts.append(process)
        return process

    def jobs(self) -> dict[str, JobStatus]:
        """Return the newest job of each name, as the pool's server reports it."""
        head = read_head(self.folder)
        assert head is not None
        with closing(SocketClient(Path(head["socket"]))) as client:
            return {job.name: job for job in client.status()[1]}

    def submit(self, *names: str, **terms: Any) -> None:
        """Submit launched jobs to the pool. Unless they say otherwise they wait more than they compute."""
        terms = {"target": {"batches": 10**6}, "init": {"pause": 0.005}, **terms}
        job = launched(**terms)
        path = self.home / "bundle.yaml"
        path.write_text(json.dumps({"jobs": dict.fromkeys(names, job)}))
        assert "submitted" in self.command("submit", str(path))

    def is_up(self) -> bool:
        """Return whether the pool is up."""
        head = read_head(self.folder)
        return head is not None and is_alive(head)

    def up(self) -> None:
        """Bring the pool up, with as many warm workers as the tests need at once: each takes seconds to start."""
        (self.home / "pool.yaml").write_text("{pool: {devices: 1, resident: 2}, policy: uniform}")
        self.command("up", "--config", "pool.yaml")

    def close(self) -> None:
        """End the scripts, and take the pool down."""
        for script in self.scripts:
            script.kill()
            script.wait()
        if self.is_up():
            self.command("down", "--now")


def batches(shell: Shell, name: str) -> int:
    """Return the batches done by a job so far; 0 if there is no such job."""
    job = shell.jobs().get(name)
    return 0 if job is None else job.batches


@pytest.fixture(scope="module")
def shell(pool_shell: Shell) -> Shell:
    if not pool_shell.is_up():
        pool_shell.up()
    return pool_shell


@pytest.fixture(autouse=True)
def nothing_is_left(shell: Shell) -> Iterator[None]:
    """A test that fails leaves no job to the next one."""
    yield
    for script in shell.scripts:
        script.kill()
        script.wait()
    if shell.is_up():
        for job in shell.jobs().values():
            if job.state is not State.ENDED:
                shell.python("-m", "lightning_core.cli.main", "cancel", job.name)  # unless it ends meanwhile
        until(lambda: all(job.state is State.ENDED for job in shell.jobs().values()))


@pytest.mark.nightly
def test_scripts_and_a_bundle_share_a_device_and_freed_shares_pass_on_at_once(shell: Shell) -> None:
    one, two = shell.script("one"), shell.script("two")
    shell.submit("x", "y", model="tests.script.Busy", init={})
    names = ("one", "two", "x", "y")
    until(lambda: all(batches(shell, name) > 5 for name in names))
    assert all(shell.jobs()[name].share == pytest.approx(0.25) for name in names)

    before = shell.jobs()

    def even() -> bool:
        nonlocal before
        now = shell.jobs()
        done = [now[name].batches - before[name].batches for name in names]
        if min(done) <= 20:
            return False
        before = now
        return max(done) <= 1.4 * min(done)

    # All do the same work a batch: equal grants are equal progress (how equal, benchmarks/live/shares.py measures).
    # Another load on the machine may slow one of them down for a while, so any span of 20 batches will do.
    until(even)

    one.kill()  # without a word
    until(lambda: shell.jobs()["two"].share == pytest.approx(1 / 3), AT_ONCE)
    assert shell.jobs()["one"].verdict is Verdict.CRASHED
    assert "its process has exited" in shell.command("why", "one")

    two.send_signal(signal.SIGINT)  # Ctrl-C: it leaves
    until(lambda: shell.jobs()["x"].share == pytest.approx(1 / 2), AT_ONCE)
    assert shell.jobs()["two"].verdict is Verdict.MISSED
    two.wait(PATIENCE)
    for name in ("x", "y"):
        shell.command("cancel", name)
    until(lambda: not any(job.devices for job in shell.jobs().values()))


def test_submitting_does_not_import_torch(shell: Shell) -> None:
    """The pool has a process that has: what it finds has the file and the line of the bundle."""
    job = {"model": {"class_path": "tests.script.Bsy"}, "deadline": "10m", "target": {"batches": 5}}
    path = shell.home / "wrong.yaml"
    path.write_text(json.dumps({"jobs": {"wrong": job}}))
    code = (
        "import sys; from lightning_core.cli.main import main; code = main(['submit', sys.argv[1]]);"
        "print('torch' in sys.modules); sys.exit(code)"
    )
    done = shell.python("-c", code, str(path))
    assert done.returncode == 2
    assert "wrong.yaml:1" in done.stderr
    assert "did you mean 'Busy'" in done.stderr
    assert done.stdout == "False\n"


def test_ports_are_those_of_ray_alone_which_tells_no_one_of_its_use(shell: Shell) -> None:
    head = read_head(shell.folder)
    assert head is not None
    ours = psutil.Process(head["pid"]).children(recursive=True)
    with_ports, telling = set(), []
    for process in ours:
        with suppress(psutil.NoSuchProcess):
            name, words = process.name(), process.cmdline()
            if any(place.status == psutil.CONN_LISTEN for place in process.net_connections("inet")):
                with_ports.add(name)
            if any("dashboard.py" in word for word in words):  # which would report it, once an hour
                telling.append(process.environ().get("RAY_USAGE_STATS_ENABLED"))
    assert with_ports >= {"gcs_server", "raylet"}
    assert {name for name in with_ports if not name.startswith("ray::")} == {"gcs_server", "raylet"}
    assert set(telling) <= {"0"}
    for path in (Path(head["socket"]), Path(head["temp"])):  # the pool itself has no port, and this is its door
        assert not path.stat().st_mode & 0o077


@pytest.mark.promise("F16")
def test_commands_steer_jobs(shell: Shell) -> None:
    shell.submit("a", "b", target={"batches": 100000}, deadline="30m")
    until(lambda: batches(shell, "a") > 20)
    assert "paused" in shell.command("pause", "a")
    held = until(lambda: (job := shell.jobs()["a"]).state is State.HELD and job)
    assert (held.share, held.devices) == (0, (0,))
    assert shell.jobs()["b"].share == 1

    def stands_still() -> bool:
        before = batches(shell, "a")
        time.sleep(0.7)
        return batches(shell, "a") == before

    until(stands_still)
    at = batches(shell, "a")
    shell.command("resume", "a")
    until(lambda: batches(shell, "a") > at)

    shell.command("pause", "a", "--release")
    released = until(lambda: (job := shell.jobs()["a"]).incarnation == 2 and job)
    assert released.state is State.RELEASED
    shell.command("resume", "a")
    until(lambda: batches(shell, "a") > released.batches + 5)

    assert "infeasible" in until(lambda: "infeasible" in (said := shell.command("deadline", "a", "5s")) and said)
    assert "its deadline is in 45m" in shell.command("deadline", "a", "45m")
    told = shell.command("why", "a")
    seen = json.loads(shell.command("status", "--json"))
    assert [job["name"] for job in seen["jobs"]][-2:] == ["a", "b"]
    assert all(words in told for words in ("paused", "resume", "deadline", "equal shares"))
    assert "Seed set to 1" in shell.command("logs", "a")
    assert "the name 'a' is taken" in shell.command("submit", str(shell.home / "bundle.yaml"), code=2)
    assert "did you mean" not in shell.command("why", "stranger", code=2)
    assert "no job 'stranger'" in shell.command("cancel", "stranger", code=2)
    assert "a pool is up already" in shell.command("up", code=2)
    for name in ("a", "b"):
        shell.command("cancel", name)
    assert "a has ended" in shell.command("pause", "a", code=2)


def test_a_launched_job_is_given_the_runs_of_its_task(shell: Shell) -> None:
    shell.submit("first", target={"batches": 50})
    until(lambda: shell.jobs()["first"].state is State.ENDED)
    until(lambda: "first" in shell.command("history", "list"))
    shell.submit("second", target={"batches": 50})
    assert "tests.tiny.Line" in shell.command("history", "show", "first")
    assert "earlier runs: like first" in shell.command("why", "second")


@pytest.mark.promise("S13")
def test_a_spec_that_was_replaced_while_its_job_was_released_is_not_run(shell: Shell) -> None:
    shell.submit("swapped", target={"batches": 100000}, deadline="30m")
    until(lambda: batches(shell, "swapped") > 5)
    shell.command("pause", "swapped", "--release")
    until(lambda: shell.jobs()["swapped"].state is State.RELEASED)
    home = shell.folder / "jobs" / "swapped"
    text = (home / "spec.json").read_text()
    home.rename(shell.folder / "away")
    home.mkdir()
    (shell.home / "theirs.py").write_text("open('hacked', 'w')\n")
    spec = json.loads(text)
    spec["paths"] = [str(shell.home)]
    spec["config"]["model"] = {"class_path": "theirs.Net"}
    (home / "spec.json").write_text(json.dumps(spec))
    shell.command("resume", "swapped")
    refused = until(lambda: (job := shell.jobs()["swapped"]).state is State.ENDED and job)
    assert refused.verdict is Verdict.CRASHED
    assert "is not the spec that was submitted: its SHA-256 is not the one in the journal" in refused.detail
    assert not [path for folder in (shell.home, home) for path in folder.rglob("hacked")]


@pytest.mark.nightly
def test_a_pool_is_reached_by_the_address_of_its_ray(shell: Shell) -> None:
    head = read_head(shell.folder)
    assert head is not None
    address, token = head["address"], {"RAY_AUTH_TOKEN_PATH": head["token"]}
    elsewhere = {**token, "LIGHTNING_CORE_HOME": str(shell.home / "nowhere")}
    assert "no pool is up" in shell.command("status", code=2, LIGHTNING_CORE_HOME=elsewhere["LIGHTNING_CORE_HOME"])
    assert '"jobs"' in shell.command("status", "--json", "--pool", address, **elsewhere)
    far = shell.script("far", LIGHTNING_CORE_POOL=address, **elsewhere)
    until(lambda: batches(shell, "far") > 20)
    assert shell.jobs()["far"].share == 1
    far.kill()
    until(lambda: shell.jobs()["far"].verdict is Verdict.CRASHED, AT_ONCE)


CELL = """
for batch in run.batches(range(1000)):
    run.log(loss=1.0 / (batch + 1))
print("trained", run.name)
"""


@pytest.mark.nightly
def test_a_cell_of_a_notebook_is_trained_as_a_script(shell: Shell) -> None:
    with Pool.connect(str(shell.folder)) as pool:
        submit_cell(pool, "cell", CELL, CELL, {"target": "loss<=0.01", "deadline": "10m"}, shell.home)
        assert pool.job("cell").result(PATIENCE).verdict is Verdict.MET
        until(lambda: "trained cell" in list(pool.logs("cell")))


@pytest.mark.promise("S1")
def test_a_wrong_token_is_refused_with_a_clear_message(shell: Shell) -> None:
    head = read_head(shell.folder)
    assert head is not None
    address = head["address"]
    told = shell.command("status", "--pool", address, code=2, RAY_AUTH_TOKEN="0" * 64)
    assert "the pool refuses the token in RAY_AUTH_TOKEN" in told
    assert "Traceback" not in told


@pytest.mark.promise("F22")
def test_a_pool_that_is_started_again_resumes_its_jobs(shell: Shell) -> None:
    shell.submit("long", target={"batches": 100000})
    before = until(lambda: (job := shell.jobs()["long"]).batches > 50 and job)
    head = read_head(shell.folder)
    assert head is not None
    shell.command("down")
    assert not is_alive(head)
    assert not Path(head["temp"]).exists()
    assert "no pool is up" in shell.command("status", code=2)
    shell.up()
    after = until(lambda: (job := shell.jobs()["long"]).batches > before.batches and job)
    assert after.incarnation > before.incarnation
    assert after.submitted_at == before.submitted_at
    shell.command("cancel", "long")


@pytest.mark.promise("R3", "F25")
@pytest.mark.nightly
def test_a_script_trains_on_without_the_head(shell: Shell) -> None:
    script = shell.script("survivor", batches=1500)
    until(lambda: batches(shell, "survivor") > 50)
    head = read_head(shell.folder)
    assert head is not None
    os.killpg(head["pid"], signal.SIGKILL)
    out, _ = script.communicate(timeout=600)
    assert script.returncode == 0, out
    assert "survivor ended after" in out
    assert out.count("training continues") >= 1
