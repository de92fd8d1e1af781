"""The tutorial and the README's pool, typed line by line into one shell, as a user does: with pauses, on slow machines.

Every shell command of a page is typed as it stands there, but for those in `NOT_TYPED`. What runs in the foreground
until Ctrl-C is left by Ctrl-C, once it shows what the page says.
"""

from __future__ import annotations

import fcntl
import os
import pty
import re
import select
import shutil
import struct
import subprocess
import sys
import tempfile
import termios
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from tests.conftest import ROOT
from tests.test_docs import FENCE
from tests.waiting import PATIENCE

pytestmark = pytest.mark.cluster

# What sets up the environment that the tests have, and what has tests of its own.
NOT_TYPED = re.compile(
    r"make (setup|demo|again|test)\b|\. \.venv/|pip install |git clone |lightning-core init|LIGHTNING_CORE_"
)
# Commands that run until Ctrl-C, and what they show before it is pressed.
UNTIL = {"lightning-core status --watch": ("a", "b"), "lightning-core serve": ("http:",)}
# Exit codes other than 0: of Ctrl-C, and of jobs that were not all met.
CODES = {"lightning-core serve": 130, "lightning-core simulate": 3}
# What a command prints, as the pages say.
SAYS = {
    "python -m examples.train --job digits": r"digits: .*\b(met|target)\b",
    "lightning-core up": r"a pool is up under triage; it outlives this shell",
    "lightning-core submit": r"submitted: cnn, lstm",
    "lightning-core status": r"\bdevice 0: ",
    "lightning-core why b": r"b: .*\n(.*\n)* *after +what +share +device +reason\n(.*\n)*.* grant ",
    "lightning-core deadline b 45m": r"b: its deadline is in 45m",
    "lightning-core pause b": r"b: paused; it keeps its memory",
    "lightning-core resume b": r"b: resumed",
    "lightning-core cancel b": r"b: cancelled",
    "lightning-core simulate": r"\n *fifo .*\n(.*\n)* *triage ",
}
ESCAPE = re.compile(r"\x1b(\[[0-9;?]*[ -/]*[@-~]|\][^\x07]*\x07|.)|\r")
# Python starts as slowly as where packages lie on a network's disk.
SLOW_START = "import time\ntime.sleep(4)\n"


class Terminal:
    """An interactive shell in a terminal, in a folder that looks like the clone.

    Args:
        home: Folder of the shell.
        temporary: Folder for temporary files.
        slow: Whether every Python in it starts slowly.
    """

    def __init__(self, home: Path, temporary: Path, slow: bool) -> None:
        self.home, self.temporary = home, temporary
        for name in ("examples", "docs"):
            (home / name).symlink_to(ROOT / name)
        late = home / "late"
        late.mkdir()
        (late / "sitecustomize.py").write_text(SLOW_START if slow else "")
        env = {key: value for key, value in os.environ.items() if not key.startswith(("RAY_", "LIGHTNING_CORE_"))}
        env |= {
            "HOME": str(home), "LIGHTNING_CORE_HOME": str(home), "PATH": f"{Path(sys.executable).parent}:{env['PATH']}",
            "PYTHONPATH": str(late), "TMPDIR": str(temporary), "PS1": "[rc=$?]\n", "TERM": "xterm",
            "OMP_NUM_THREADS": "1",
        }  # fmt: skip
        self._end, other = pty.openpty()
        fcntl.ioctl(other, termios.TIOCSWINSZ, struct.pack("HHHH", 50, 200, 0, 0))
        words = ["setsid", "--ctty", "bash", "--norc", "--noediting", "-i"]
        self._bash = subprocess.Popen(words, stdin=other, stdout=other, stderr=other, cwd=home, env=env)
        os.close(other)
        self.wait(r"\[rc=0\]\n")

    @property
    def shell(self) -> int:
        """Process id of the shell."""
        return self._bash.pid

    def wait(self, pattern: str, seconds: float = 10 * PATIENCE) -> str:
        """Return what is printed up to a pattern."""
        printed, until = "", time.monotonic() + seconds
        while not re.search(pattern, ESCAPE.sub("", printed)):
            left = until - time.monotonic()
            assert left > 0, f"no {pattern} in:\n{printed}"
            if select.select([self._end], [], [], left)[0]:
                printed += os.read(self._end, 65536).decode(errors="replace")
        return ESCAPE.sub("", printed)

    def type(self, line: str) -> tuple[int, str]:
        """Type a line, press Ctrl-C where it needs that, and return its exit code and what was printed."""
        os.write(self._end, f"{line}\n".encode())
        command = line.partition("#")[0].strip()
        shown = ""
        if command in UNTIL:
            shown = self.wait("(?s)" + "".join(rf"(?=.*\n\W*{name}\b)" for name in UNTIL[command]))
            os.write(self._end, b"\x03")
        said = self.wait(r"\[rc=\d+\]\n")
        return int(re.findall(r"\[rc=(\d+)\]", said)[-1]), shown + said

    def close(self) -> None:
        """Take the pool down, and end what the shell has started."""
        for line in ("lightning-core down --now", "kill $(jobs -p)"):
            self.type(line)
        os.write(self._end, b"exit\nexit\n")
        self._bash.wait(60)
        os.close(self._end)


@pytest.fixture
def terminal(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Terminal]:
    temporary = Path(tempfile.mkdtemp(prefix="t-"))  # a short path, for the sockets of Ray
    made = Terminal(tmp_path, temporary, slow=request.param)
    yield made
    made.close()
    shutil.rmtree(temporary)


def lines_of(page: str, heading: str, until: str) -> list[str]:
    """Return the lines of the shell blocks of a page between two headings."""
    text = (ROOT / page).read_text().split(f"## {heading}\n")[1].split(f"## {until}\n")[0]
    blocks = [match["text"] for match in FENCE.finditer(text) if match["language"] == "bash"]
    return [line for line in "".join(blocks).splitlines() if line.strip() and not NOT_TYPED.match(line)]


@pytest.mark.parametrize(
    ("page", "heading", "until", "pause", "terminal"),
    [
        # Simulating takes longer than all that is before it; and the script alone is the one that joins the pool.
        ("docs/tutorial.md", "4. Bring up a pool", "8. Simulate before you train", 0.0, False),
        pytest.param("docs/tutorial.md", "1. Set up", "Next", 45.0, False, marks=pytest.mark.nightly),
        pytest.param("docs/tutorial.md", "1. Set up", "Next", 0.0, True, marks=pytest.mark.nightly),
        pytest.param("README.md", "A pool", "A bundle of jobs", 10.0, False, marks=pytest.mark.nightly),
        pytest.param("README.md", "A pool", "A bundle of jobs", 0.0, True, marks=pytest.mark.nightly),
    ],
    ids=["tutorial", "tutorial-slow-typing", "tutorial-slow-imports", "readme-slow-typing", "readme-slow-imports"],
    indirect=["terminal"],
)
def test_what_the_pages_say_can_be_typed(page: str, heading: str, until: str, pause: float, terminal: Terminal) -> None:
    lines = lines_of(page, heading, until)
    assert {"up", "submit", "why", "deadline", "down"} <= {line.split()[1] for line in lines}
    for line in lines:
        time.sleep(pause)
        code, said = terminal.type(line)
        assert code == next((code for command, code in CODES.items() if line.startswith(command)), 0), f"{line}\n{said}"
        for command, words in SAYS.items():
            assert not line.startswith(command) or re.search(words, said), f"{line}\n{said}"
    assert not left_by(terminal)


def left_by(terminal: Terminal) -> list[str]:
    """Return what is left of a pool that was taken down, once its folder is removed, as docs/faq.md says."""
    end = time.monotonic() + 30.0
    while (processes := processes_of(terminal)) and time.monotonic() < end:
        time.sleep(0.1)  # those of Ray may end a moment after their head
    assert not processes
    shutil.rmtree(terminal.home / "pool")
    theirs = {"examples", "docs", "late", ".cache", ".config"}  # the test's own, and folders of matplotlib
    found = [path for path in terminal.home.iterdir() if path.name not in theirs]
    found += [path for name in (".cache", ".config") for path in (terminal.home / name).glob("*")]
    found += terminal.temporary.iterdir()
    return [str(path) for path in found if not path.name.startswith(("matplotlib", "torchinductor_"))]


def processes_of(terminal: Terminal) -> list[str]:
    """Return the commands of all processes of a pool that was brought up in a shell; scripts train on after its end."""
    found, mark = [], f"TMPDIR={terminal.temporary}".encode()
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # another user's, or over
            if process.name != str(terminal.shell) and mark in (process / "environ").read_bytes().split(b"\0"):
                found.append((process / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace"))
    return [command for command in found if "examples.train" not in command]
