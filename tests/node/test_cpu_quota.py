"""Quotas of CPU time: with this machine's kernel where it lets us (v1 here), else skipped.

cgroup v2, other layouts and refusals are checked against a fake tree alone: files under ``tmp_path`` which obey the few
rules of the kernel that :class:`Fake` knows. They say that the right files are written, not that a kernel obeys them.
"""

from __future__ import annotations

import errno
import logging
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from lightning_core.node import cgroups
from lightning_core.node.cgroups import sweep
from lightning_core.node.cpu_quota import Quota, open_quota
from lightning_core.node.processes import started
from tests.conftest import ROOT
from tests.waiting import until

CGROUPS = Path("/sys/fs/cgroup")
# Two processes that never rest, each as long as the one that started it lives; the second is forked at once, or when
# told to.
BUSY = """
import os, sys
family = os.getppid(), os.getpid()
if sys.argv[1] == "before":
    child = os.fork()
    if child:
        print(child, flush=True)
else:
    print(0, flush=True)
    sys.stdin.readline()
    os.fork()
while os.getppid() in family:
    pass
"""
OPENS = """
import time
from lightning_core.node.cpu_quota import open_quota
assert open_quota()
print("open", flush=True)
time.sleep(60)
"""


class Busy:
    """A process that keeps its core busy, and a child that does the same."""

    def __init__(self, when: str = "before") -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-c", BUSY, when], stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True
        )
        assert self._process.stdout is not None
        self.pid = self._process.pid
        self.child = int(self._process.stdout.readline())

    def fork(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(b"now\n")
        self._process.stdin.flush()

    def close(self) -> None:
        if self._process.returncode is not None:
            return
        os.killpg(self.pid, signal.SIGKILL)
        self._process.wait()
        for stream in (self._process.stdin, self._process.stdout):
            assert stream is not None
            stream.close()


def test_busy_processes_end_with_the_process_that_started_them() -> None:
    """A test run that is killed leaves no busy process."""
    code = "import os; from tests.node.test_cpu_quota import Busy; b = Busy(); print(b.pid, b.child, flush=True)"
    code += "; os._exit(1)"
    told = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False).stdout
    until(lambda: not any(started(int(pid)) for pid in told.split()))
    assert len(told.split()) == 2


@pytest.fixture(scope="module")
def kernel() -> None:
    """Skip the tests if this process must not set limits."""
    reasons: list[str] = []
    busy = Busy()
    try:
        made = open_quota(pid=busy.pid, tell=reasons.append)
        if made is not None:
            made.close()
    finally:
        busy.close()
    if reasons:
        pytest.skip(reasons[0])


@pytest.fixture
def busy(kernel: None) -> Iterator[Busy]:
    made = Busy()
    yield made
    made.close()
    until(lambda: are_swept(made.pid))


def opened(pid: int) -> Quota:
    made = open_quota(pid=pid)
    assert made is not None
    return made


def rate(made: Quota, seconds: float) -> float:
    """Return the cores in use. A busy machine leaves less than the limit, so limits are low where they are reached."""
    used, start = made.used(), time.monotonic()
    time.sleep(seconds)
    return (made.used() - used) / (time.monotonic() - start)


def where(pid: int) -> str:
    return Path(f"/proc/{pid}/cgroup").read_text()


def folders(pid: int) -> list[Path]:
    return sorted(CGROUPS.glob(f"**/lightning_core-{pid}-*"))


def are_swept(pid: int) -> bool:
    sweep()
    return not folders(pid)


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_process_and_its_child_share_the_quota(kernel: None, when: str) -> None:
    """Whether the child was forked before the group was opened or afterwards."""
    busy = Busy(when)
    try:
        made = opened(busy.pid)
        if when == "after":
            busy.fork()
        made.limit(0.1)
        time.sleep(0.2)  # what they had used of their first periods without it
        until(lambda: rate(made, 0.5) > 0.07)
        assert rate(made, 1.5) < 0.15
        [procs, *_] = [folder / "cgroup.procs" for folder in folders(busy.pid)]
        assert len(procs.read_text().split()) == 2
        made.close()
    finally:
        busy.close()


def test_a_limit_can_be_raised_and_taken_off(busy: Busy) -> None:
    made = opened(busy.pid)
    made.limit(0.05)
    time.sleep(0.2)
    assert rate(made, 0.5) < 0.1
    made.limit(0.1)
    until(lambda: rate(made, 0.5) > 0.07)
    assert rate(made, 0.7) < 0.15
    made.limit(0.05)
    made.limit(None)
    until(lambda: rate(made, 0.7) > 0.07)
    made.close()


def test_closing_moves_all_processes_back_and_leaves_nothing(busy: Busy) -> None:
    before = where(busy.pid)
    made = opened(busy.pid)
    made.limit(0.05)
    assert where(busy.pid) == where(busy.child) != before
    assert folders(busy.pid)
    until(lambda: made.used() > 0.0)
    made.close()
    assert where(busy.pid) == where(busy.child) == before
    assert not folders(busy.pid)
    used = made.used()
    assert used > 0.0
    made.close()
    made.limit(0.3)
    assert made.used() == used


@pytest.mark.parametrize("by", ["sweeping", "the next that opens one"])
def test_groups_of_a_killed_process_are_removed(busy: Busy, by: str) -> None:
    with subprocess.Popen([sys.executable, "-c", OPENS], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"open\n"
        assert folders(process.pid)
        process.kill()
    if by == "sweeping":
        sweep()
    else:
        opened(busy.pid).close()
    assert not folders(process.pid)


def test_a_group_with_a_process_is_not_removed(busy: Busy) -> None:
    made = opened(busy.pid)
    made.limit(0.1)
    os.kill(busy.pid, signal.SIGKILL)  # its child survives
    sweep()
    assert folders(busy.pid)
    time.sleep(0.2)
    assert rate(made, 0.5) < 0.2
    made.close()
    assert not folders(busy.pid)


def test_concurrent_removal_does_no_harm(busy: Busy, caplog: pytest.LogCaptureFixture) -> None:
    """A group without processes, before the first or after the last, looks like one that was left behind."""
    over = threading.Event()

    def sweep_on() -> None:
        while not over.is_set():
            sweep()

    threads = [threading.Thread(target=sweep_on) for _ in range(2)]
    for thread in threads:
        thread.start()
    try:
        for _ in range(20):
            made = opened(busy.pid)
            made.limit(0.5)
            made.close()
    finally:
        over.set()
        for thread in threads:
            thread.join()
    assert not caplog.text


def test_a_second_quota_for_a_process_replaces_the_first(busy: Busy) -> None:
    before = where(busy.pid)
    first = opened(busy.pid)
    until(lambda: first.used() > 0.5)
    first.limit(0.05)
    second = opened(busy.pid)
    assert second.used() < 0.5
    until(lambda: rate(second, 0.3) > 0.1)  # and without a limit
    second.close()
    assert where(busy.pid) == before
    first.limit(0.1)
    first.close()
    assert not folders(busy.pid)


def test_a_child_of_a_limited_process_has_a_quota_of_its_own(busy: Busy) -> None:
    before = where(busy.pid)
    outer = opened(busy.pid)
    outer.limit(0.05)
    inner = opened(busy.child)
    inner.limit(0.1)
    assert [folder.parent for folder in folders(busy.child)] == [folder.parent for folder in folders(busy.pid)]
    time.sleep(0.2)
    until(lambda: rate(inner, 0.5) > 0.07)
    assert rate(inner, 0.8) < 0.15
    again = opened(busy.pid)  # does not take it back
    assert where(busy.child) != where(busy.pid)
    again.close()
    inner.close()  # where it was is gone: it goes where that was
    assert where(busy.child) == where(busy.pid) == before
    outer.close()


def test_a_lower_limit_above_holds(busy: Busy, caplog: pytest.LogCaptureFixture) -> None:
    """The kernel refuses a higher one below it (v1)."""
    cpu = CGROUPS / "cpu"
    if not (cpu / "cpu.cfs_quota_us").exists():
        pytest.skip("no cgroup v1 at the usual place")
    above = cpu / f"test-quota-{os.getpid()}"
    above.mkdir()
    try:
        (above / "cpu.cfs_quota_us").write_text("20000")
        for pid in (busy.pid, busy.child):
            (above / "cgroup.procs").write_text(str(pid))
        made = opened(busy.pid)
        assert folders(busy.pid)[0].parent == above
        made.limit(0.5)
        time.sleep(0.2)
        assert rate(made, 0.5) < 0.3
        made.limit(0.1)
        assert rate(made, 0.5) < 0.15
        made.close()
        assert not caplog.text
    finally:
        busy.close()
        until(lambda: not (above / "cgroup.procs").read_text())
        above.rmdir()


def test_a_vanished_group_is_reported_once(busy: Busy, caplog: pytest.LogCaptureFixture) -> None:
    made = opened(busy.pid)
    made.limit(0.3)
    until(lambda: made.used() > 0.05)
    used = made.used()
    for folder in folders(busy.pid):
        for pid in (busy.pid, busy.child):
            (folder.parent / "cgroup.procs").write_text(str(pid))
        folder.rmdir()
    made.limit(0.4)
    made.limit(0.5)
    assert made.used() >= used
    made.close()
    assert len(caplog.records) == 1


# ------------------------------------------------------------------------------------------------ the fake

PID = 71
V1 = {"cpu.cfs_quota_us": "-1\n", "cpu.shares": "1024\n", "cpu.cfs_period_us": "100000\n", "cpuacct.usage": "0\n"}


class Fake:
    """A file system with one process (and its child, 72) that limits: groups are born with their files, a process is in
    one group a hierarchy, no group with a process can be removed, and v2 enables controllers only where none is.

    Args:
        root: where it is made.
        patch: what puts it in the kernel's place.
        hierarchies: their mounts, each its controllers (none: v2), where it is mounted, the group mounted there, and
            the process's group.
    """

    def __init__(self, root: Path, patch: pytest.MonkeyPatch, *hierarchies: tuple[str, str, str, str]) -> None:
        self.root = root
        self.read_only = False
        self.sweeper = 0  # number of groups that another process removes as soon as they are made
        self._hierarchies = hierarchies
        self._write, self._mkdir, self._rmdir = cgroups.write, os.mkdir, os.rmdir
        mounts = ["21 1 0:19 / /proc rw - proc proc rw\n"]
        for number, (controllers, point, top, _) in enumerate(hierarchies):
            kind = "cgroup" if controllers else "cgroup2"
            mounts.append(f"3{number} 1 0:3 {top} {point} rw,relatime - {kind} none rw,{controllers}\n")
            folder = self.folder(controllers)
            for made in (folder, *folder.parents):
                if made.is_relative_to(self._mount(controllers)):
                    made.mkdir(parents=True, exist_ok=True)
                    self._fill(made, controllers, "cpu memory")
            (folder / "cgroup.procs").write_text(f"{PID}\n{PID + 1}\n")
        for pid, parent in ((PID, 1), (PID + 1, PID)):
            proc = root / f"proc/{pid}"
            proc.mkdir(parents=True)
            (proc / "stat").write_text(f"{pid} (a) b) S {parent} {'0 ' * 17}5005 0\n")
            lines = [f"{n}:{controllers}:{group}\n" for n, (controllers, _, _, group) in enumerate(hierarchies)]
            (proc / "cgroup").write_text("".join(lines))
        (root / "proc/self").mkdir()
        (root / "proc/self/mountinfo").write_text("".join(mounts))
        patch.setattr(cgroups, "write", self.write)
        patch.setattr(os, "mkdir", self.mkdir)
        patch.setattr(os, "rmdir", self.rmdir)

    def folder(self, controllers: str) -> Path:
        """Limit of the process's group at the beginning."""
        [(top, group)] = [(top, group) for name, _, top, group in self._hierarchies if name == controllers]
        return self._mount(controllers) / Path(group).relative_to(top)

    def own(self, controllers: str) -> Path:
        return self.folder(controllers) / f"lightning_core-{PID}-5005"

    def write(self, path: Path, text: str) -> None:
        if path.name == "cgroup.subtree_control":
            if (path.parent / "cgroup.procs").read_text() and path.parent != self._mount(""):
                raise OSError(errno.EBUSY, "busy", str(path))
            text = text.removeprefix("+")
        if path.name == "cgroup.procs" and path.exists():
            for other in self._mount(self._hierarchy(path)).rglob("cgroup.procs"):
                other.write_text("".join(line for line in other.open() if line.strip() != text))
            text = path.read_text() + text + "\n"
        self._write(path, text)

    def mkdir(self, path: str | Path, mode: int = 0o777) -> None:
        path = Path(path)
        made = (path.parent / "cgroup.procs").exists()
        if made and self.read_only:
            raise OSError(errno.EROFS, "Read-only file system", str(path))
        self._mkdir(path, mode)
        if made:
            controlled = path.parent / "cgroup.subtree_control"
            self._fill(path, self._hierarchy(path), controlled.read_text() if controlled.exists() else "")
            if self.sweeper:
                self.sweeper -= 1
                self.rmdir(path)

    def rmdir(self, path: str | Path, *, dir_fd: int | None = None) -> None:
        procs = Path(path) / "cgroup.procs"
        if not procs.exists():
            self._rmdir(path, dir_fd=dir_fd)
        elif procs.read_text():
            raise OSError(errno.EBUSY, "busy", str(path))
        else:
            shutil.rmtree(path)

    def _hierarchy(self, path: Path) -> str:
        [controllers] = [name for name, *_ in self._hierarchies if path.is_relative_to(self._mount(name))]
        return controllers

    def _mount(self, controllers: str) -> Path:
        [point] = [point for name, point, *_ in self._hierarchies if name == controllers]
        return self.root / point.lstrip("/").replace("\\040", " ")

    def _fill(self, folder: Path, controllers: str, enabled: str) -> None:
        files = {"cgroup.procs": ""}
        files |= {name: text for name, text in V1.items() if name.partition(".")[0] in controllers.split(",")}
        if not controllers:
            files |= {"cgroup.controllers": enabled, "cgroup.subtree_control": "", "cpu.stat": "usage_usec 0\n"}
            files |= {"cpu.max": "max 100000\n", "cpu.weight": "100\n"} if "cpu" in enabled.split() else {}
        for name, text in files.items():
            (folder / name).write_text(text)


def refused(fake: Fake) -> str:
    reasons: list[str] = []
    assert open_quota(fake.root, PID, reasons.append) is None
    [reason] = reasons
    return reason


def test_v2_limits_and_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake = Fake(tmp_path, monkeypatch, ("", "/sys/fs/cgroup", "/", "/"))
    made = open_quota(tmp_path, PID)
    assert made is not None
    own = fake.own("")
    assert (own / "cgroup.procs").read_text().split() == ["71", "72"]
    assert (own / "cpu.max").read_text() == "max 100000"
    made.limit(0.3)
    assert (own / "cpu.max").read_text() == "30000 100000"
    made.limit(None)
    assert (own / "cpu.max").read_text() == "max 100000"
    (own / "cpu.stat").write_text("usage_usec 1500000\nuser_usec 1400000\nsystem_usec 100000\n")
    assert made.used() == 1.5
    made.close()
    assert not own.exists()
    assert (fake.folder("") / "cgroup.procs").read_text().split() == ["71", "72"]
    assert made.used() == 1.5


def test_v2_refuses_below_a_group_with_processes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake = Fake(tmp_path, monkeypatch, ("", "/sys/fs/cgroup", "/", "/user/session"))
    assert "busy" in refused(fake)
    assert not fake.own("").exists()


def test_v2_without_a_cpu_controller(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake = Fake(tmp_path, monkeypatch, ("", "/sys/fs/cgroup", "/", "/"))
    (fake.folder("") / "cgroup.controllers").write_text("memory pids\n")
    assert "no cpu controller" in refused(fake)


@pytest.mark.parametrize("controllers", ["cpu,cpuacct", "cpuacct,cpu"])
def test_v1_with_both_controllers_in_one_hierarchy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, controllers: str
) -> None:
    """In a container that sees its own group alone; beside it an empty v2, and a folder with a space in its name."""
    fake = Fake(
        tmp_path,
        monkeypatch,
        (controllers, "/sys/fs/c\\040group/both", "/docker/ab", "/docker/ab/job"),
        ("name=systemd", "/sys/fs/systemd", "/", "/"),
        ("", "/sys/fs/unified", "/", "/"),
    )
    made = open_quota(tmp_path, PID)
    assert made is not None
    own = fake.own(controllers)
    assert own.parent == tmp_path / "sys/fs/c group/both/job"
    made.limit(0.3)
    assert (own / "cpu.cfs_quota_us").read_text() == "30000"
    (own / "cpuacct.usage").write_text("2500000000\n")
    assert made.used() == 2.5
    assert not fake.own("").exists()
    made.close()
    assert not own.exists()


def test_v1_with_a_hierarchy_for_each_controller(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake = Fake(tmp_path, monkeypatch, ("cpuacct", "/a", "/", "/x"), ("cpu", "/c", "/", "/y"))
    fake.sweeper = 3  # before anybody is in
    made = open_quota(tmp_path, PID)
    assert made is not None
    made.limit(0.3)
    assert (fake.own("cpu") / "cpu.cfs_quota_us").read_text() == "30000"
    (fake.own("cpuacct") / "cpuacct.usage").write_text("2500000000\n")
    assert made.used() == 2.5
    made.close()
    assert not list(tmp_path.rglob("lightning_core-*"))


@pytest.mark.parametrize(
    ("cores", "quota_us"), [(0.0, 5000), (0.01, 5000), (0.12, 10000), (0.13, 15000), (1.0, 100000), (3.98, 400000)]
)
def test_quotas_are_rounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cores: float, quota_us: int) -> None:
    fake = Fake(tmp_path, monkeypatch, ("cpu,cpuacct", "/c", "/", "/"))
    made = open_quota(tmp_path, PID)
    assert made is not None
    made.limit(cores)
    file = fake.own("cpu,cpuacct") / "cpu.cfs_quota_us"
    assert file.read_text() == str(quota_us)
    file.write_text("untouched")
    made.limit(cores + 0.001)
    assert file.read_text() == "untouched"
    made.close()


@pytest.mark.parametrize(
    ("controllers", "file", "weights"),
    [("cpu,cpuacct", "cpu.shares", ["1024", "2048"]), ("", "cpu.weight", ["100", "200"])],
)
def test_a_group_weighs_as_much_as_the_cores_that_it_may_use(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, controllers: str, file: str, weights: list[str]
) -> None:
    """Two threads of one group would else have half of what another process gets beside them."""
    fake = Fake(tmp_path, monkeypatch, (controllers, "/c", "/", "/"))
    made = open_quota(tmp_path, PID)
    assert made is not None
    weight = fake.own(controllers) / file
    told = []
    for cores in (0.5, 1.5, 1.0, 2.0, None):
        made.limit(cores)
        told.append(weight.read_text().strip())
    assert told == [weights[number] for number in (0, 1, 0, 1, 0)]
    made.close()


@pytest.mark.parametrize(
    ("hierarchies", "words"),
    [
        ([("memory", "/m", "/", "/")], "no cgroups"),
        ([("cpu", "/c", "/", "/")], "no cgroups"),
        ([("cpu,cpuacct", "/c", "/", "/")], "Read-only"),
        ([("", "/c", "/", "/")], "Read-only"),
    ],
)
def test_an_unavailable_quota_has_a_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, hierarchies: list[tuple[str, str, str, str]], words: str
) -> None:
    fake = Fake(tmp_path, monkeypatch, *hierarchies)
    fake.read_only = True
    assert words in refused(fake)


def test_a_group_outside_of_what_is_mounted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake = Fake(tmp_path, monkeypatch, ("cpu,cpuacct", "/c", "/", "/"))
    (tmp_path / f"proc/{PID}/cgroup").write_text("1:cpu,cpuacct:/../elsewhere\n")
    assert "not mounted" in refused(fake)
    (tmp_path / f"proc/{PID}/cgroup").write_text("?\n")
    assert "cannot be limited" in refused(fake)
    (tmp_path / f"proc/{PID}/cgroup").unlink()
    assert "cannot be limited" in refused(fake)


def test_a_partly_written_quota_is_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake = Fake(tmp_path, monkeypatch, ("cpu", "/c", "/", "/"), ("cpuacct", "/a", "/", "/"))
    write = fake.write

    def refuses(path: Path, text: str) -> None:
        if path == fake.own("cpuacct") / "cgroup.procs":
            raise PermissionError(errno.EACCES, "Permission denied", str(path))
        write(path, text)

    monkeypatch.setattr(cgroups, "write", refuses)
    assert "Permission denied" in refused(fake)
    assert not list(tmp_path.rglob("lightning_core-*"))
    assert (fake.folder("cpu") / "cgroup.procs").read_text().split() == ["71", "72"]


@pytest.mark.parametrize("controllers", ["", "cpu,cpuacct"])
def test_a_later_fault_is_reported_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, controllers: str
) -> None:
    fake = Fake(tmp_path, monkeypatch, (controllers, "/c", "/", "/"))
    made = open_quota(tmp_path, PID)
    assert made is not None
    caplog.set_level(logging.WARNING)
    shutil.rmtree(fake.own(controllers))
    made.limit(0.3)
    made.limit(None)
    assert made.used() == 0.0
    made.close()
    assert len(caplog.records) == 1


def test_only_empty_groups_of_this_package_are_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake = Fake(tmp_path, monkeypatch, ("cpu,cpuacct", "/c", "/", "/"))
    made = open_quota(tmp_path, PID)
    assert made is not None
    for name in ("lightning_core-5-6", "lightning_core-mine", "lightning_core-5-6-7", "docker"):
        os.mkdir(fake.root / "c" / name)
    monkeypatch.setattr(os, "getpid", lambda: PID)  # the sweeping process is in a group itself
    sweep(tmp_path)
    left = {path.name for path in (tmp_path / "c").iterdir() if path.is_dir()}
    assert left == {"lightning_core-mine", "lightning_core-5-6-7", "docker", f"lightning_core-{PID}-5005"}
    made.close()
    sweep(tmp_path / "nowhere")
