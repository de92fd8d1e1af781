"""Commands of the user's that do what no command should: none may hang, fill the memory or crash the run."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from lightning_core.node.processes import started
from lightning_core.parts.market.cloud import command_provisioner, quotes
from lightning_core.parts.market.cloud.command_provisioner import CommandProvisioner
from lightning_core.parts.market.cloud.quotes import QuoteCommand
from lightning_core.parts.market.cloud_events import Quoted
from lightning_core.parts.market.node_counts import NodeCounts
from tests.waiting import until

GOOD = '{"price": 0.5, "available": 2}'
# A child in the same process group that keeps the output open, and says its id first.
CHILD = "import os, sys, time\nif not (pid := os.fork()): time.sleep(300)\nopen(sys.argv[1], 'w').write(str(pid))\n"


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(quotes, "QUOTE_TIMEOUT", 30.0)
    monkeypatch.setattr(command_provisioner, "COMMAND_TIMEOUT", 0.5)
    monkeypatch.setattr(command_provisioner, "RETRY_SECONDS", 0.01)


def within(seconds: float, call: Callable[[], object]) -> list[object]:
    """Return what a call returns or raises; fail if it takes longer, which leaves its thread behind."""
    found: list[object] = []

    def run() -> None:
        try:
            found.append(call())
        except ValueError as error:
            found.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(seconds)
    assert found, f"it still runs after {seconds:g} s"
    return found


def asked(code: str, *arguments: str) -> str:
    """Return the quote, or the error, of a Python program."""

    [found] = within(40.0, QuoteCommand([sys.executable, "-S", "-c", code, *arguments]).ask)
    return str(found)


@pytest.mark.parametrize(
    ("code", "words"),
    [
        ("while True: print('x' * 65536)", "printed more than 32,768 bytes"),
        ("while True: pass", "no answer within 0.3 s"),
        ("import os\nwhile True: os.write(2, b'x' * 65536)", "no answer within 0.3 s"),
        ("import os; os.kill(os.getpid(), 9)", "exit code -9"),
        ("import os; os.write(1, b'\\xff\\xfe')", "printed no UTF-8 text (byte 0)"),
        ("import os; os.write(2, b'\\xff\\xfe'); os._exit(255)", "exit code 255: "),
        ("print('[' * 4000)", "must print"),
        ("print('{\"price\": ' + '9' * 4000 + ', \"available\": 1}')", "price must be a number that is"),
        ('print(\'{"price": 1e308, "available": 1}\')', "price must be 0 to"),
        ('print(\'{"price": 1, "available": 1, "on_demand": 5e-324}\')', "on_demand must be 1e-09 to"),
        ("print('{\"price\": \"' + 'x' * 4000 + '\", \"available\": 1}')", "price must be a number, got"),
        ('print(\'{"price": -Infinity, "available": 1}\')', "price must be a number that is"),
    ],
)
def test_a_hostile_quote_is_refused_in_time(code: str, words: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(quotes, "QUOTE_TIMEOUT", 0.3 if "no answer" in words else 30.0)
    said = asked(code)
    assert words in said
    assert len(said) < 500


def test_a_quote_is_not_waited_for_longer_than_its_command_and_leaves_no_child(tmp_path: Path) -> None:
    code = CHILD + f"print({GOOD!r}, flush=True)\nos._exit(0)"
    assert asked(code, str(tmp_path / "pid")) == str(Quoted(0.5, 2))
    until(lambda: started(int((tmp_path / "pid").read_text())) is None)


@pytest.fixture
def provisioned() -> Iterator[Callable[..., CommandProvisioner]]:
    made = []

    def make(code: str, *arguments: str) -> CommandProvisioner:
        made.append(CommandProvisioner([sys.executable, "-S", "-c", code, *arguments]))
        return made[-1]

    yield make
    for one in made:
        one.close()


def test_no_child_of_a_command_that_is_given_up_rents_nodes_beside_the_next_one(
    tmp_path: Path, provisioned: Callable[..., CommandProvisioner]
) -> None:
    code = CHILD + "time.sleep(0 if os.environ['LIGHTNING_CORE_SPOT'] == '0' else 300)"
    provisioned(code, str(tmp_path / "pid")).scale_to(NodeCounts(2, 0))
    until((tmp_path / "pid").exists)
    until((tmp_path / "pid").read_text)
    child = int((tmp_path / "pid").read_text())
    until(lambda: started(child) is None)


def test_processes_that_a_successful_command_started_survive(
    tmp_path: Path, provisioned: Callable[..., CommandProvisioner]
) -> None:
    """It may have started a node on this machine."""
    code = CHILD.replace("300", "20") + "sys.stdout.flush(); open(sys.argv[1] + '.over', 'w').close(); os._exit(0)"
    provisioned(code, str(tmp_path / "pid")).scale_to(NodeCounts(1, 0))
    until((tmp_path / "pid.over").exists)
    time.sleep(0.1)
    assert started(int((tmp_path / "pid").read_text())) is not None
