"""The table of docs/faults.md of all that a training thread waits for holds: its limits, and that there is no more."""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Iterator

import pytest

from lightning_core.agent import metric_log, participant
from lightning_core.agent.reporting import loss_meter
from lightning_core.agent.reporting.joining import POOL_TIMEOUT
from lightning_core.agent.reporting.mailbox import Mailbox
from lightning_core.agent.steering import busy_timer, offload, ranks, roll_call, steering, suspension, throttle
from lightning_core.callbacks.checkpointing import best_model
from lightning_core.node import arbiter_client
from lightning_core.node.device_arbiter import DeviceArbiter
from lightning_core.storage.job_specs import MIN_TRAINING_PER_SAVE
from lightning_core.view import console_lines
from tests.conftest import ROOT

pytestmark = pytest.mark.promise("R3")
# What may block: names of functions and methods, of whatever object.
BLOCKS = re.compile(
    "wait|wait_for|join|acquire|sleep|result|poll|select|recv|recv_bytes|accept|connect|synchronize|broadcast|"
    "broadcast_object_list|barrier|all_reduce|all_gather|all_gather_object|reduce|reduce_boolean_decision|gather|"
    "monitored_barrier|flock|lockf|run|check_output|communicate|get_nowait|shutdown"
)
# Modules whose code runs in the training thread, if not in one of its own.
SCANNED = (
    "callbacks/**/*.py", "lightning_core/agent/**/*.py", "lightning_core/integrations/*.py",
    "lightning_core/node/arbiter_client.py",
    "lightning_core/node/suspender_client.py",
    "lightning_core/view/console_lines.py",
)  # fmt: skip

# Beginnings of the first column of the table.
FIRST, HELD, TURN, AHEAD = "before the first batch", "while it is held", "for its turn", "between two batches"
ROOM, RANKS, SAVE, GPU, LAST = "for room", "for the other ranks", "for a save", "for a GPU", "when it has ended"
MOVE, OTHERS = "to leave the device", "until all ranks of a plain loop begin"
# Why a call is in no row.
ELSEWHERE = "in a thread of ours, or of the writer"
NEVER = "does not block"
BELOW = "what it calls is in a row"
CALLS = {
    "callbacks/checkpointing/async_writer.py": {
        "save:acquire": "for a checkpoint", "wait:result": "for a checkpoint", "close:result": LAST,
        "close:shutdown": NEVER,
    },
    "callbacks/checkpointing/checkpoint_io.py": {"load_checkpoint:wait": BELOW},
    "callbacks/checkpointing/job_checkpointer.py": {"_gather:all_gather_object": SAVE, "_postpone:broadcast": SAVE},
    "callbacks/checkpointing/shards.py": {"_first:broadcast": SAVE, "_do:all_gather_object": SAVE},
    "callbacks/checkpointing/job_writer.py": {"_dump:reduce_boolean_decision": SAVE, "write:broadcast": SAVE},
    "lightning_core/agent/launched_script.py": {"_claim:lockf": NEVER},
    "lightning_core/agent/steering/busy_timer.py": {"_mark:synchronize": GPU, "end:synchronize": GPU},
    "lightning_core/agent/steering/offload.py": {"_synchronize:synchronize": ROOM},
    "lightning_core/agent/steering/suspension.py": {"read_on_host:sleep": ROOM},
    "lightning_core/node/suspender_client.py": {"__init__:connect": MOVE, "ask:recv": MOVE},
    "lightning_core/agent/steering/ranks.py": {
        "_tell:all_gather": RANKS, "agree:broadcast": RANKS, "agree:synchronize": RANKS, "told:broadcast": RANKS,
        "common:all_reduce": RANKS,
    },
    "lightning_core/agent/steering/roll_call.py": {"all_ranks_begin:wait": OTHERS},
    "lightning_core/integrations/loop_training.py": {"begin:wait_for_start": BELOW},
    "lightning_core/agent/steering/steering.py": {
        "wait_for_start:wait": FIRST, "wait_for_start:wait_for_answer": FIRST, "admit:wait": HELD, "_hold:wait": HELD,
        "_pause:wait": AHEAD, "_acquire:acquire": TURN, "_acquire:wait": ROOM,
    },
    "callbacks/fit.py": {
        "_after_epoch:broadcast": RANKS, "begin:wait_for_start": BELOW,
    },
    "lightning_core/agent/reporting/inbox.py": {"wait:wait": BELOW, "wait_for_answer:wait_for": BELOW},
    "lightning_core/agent/reporting/joining.py": {
        "_ask:join": ELSEWHERE, "_connect:connect": ELSEWHERE, "_connect_locally:join": ELSEWHERE,
    },
    "lightning_core/agent/reporting/loss_meter.py": {"read:synchronize": GPU},
    "lightning_core/agent/reporting/mailbox.py": {
        "_listen:sleep": ELSEWHERE, "_listen:wait": ELSEWHERE, "_run:poll": ELSEWHERE, "_run:wait": ELSEWHERE,
        "close:join": LAST,
    },
    "lightning_core/agent/reporting/rank_memory.py": {"_measure:wait": ELSEWHERE},
    "lightning_core/agent/slurm.py": {"_ask:sleep": ELSEWHERE, "end_of:run": ELSEWHERE},
    "lightning_core/node/arbiter_client.py": {
        "_connect:connect": "to connect", "_receive:poll": TURN, "_receive:recv": NEVER,
    },
    "lightning_core/view/console_lines.py": {"_write:poll": "to print"},
}  # fmt: skip
# Seconds of each constant, or parts of the time in per cent, as the table says them.
LIMITS = {
    "FIRST_ANSWER_TIMEOUT": steering.FIRST_ANSWER_TIMEOUT,
    "FIRST_DIRECTIVE_TIMEOUT": steering.FIRST_DIRECTIVE_TIMEOUT,
    "POOL_TIMEOUT": POOL_TIMEOUT,
    "LEASE": steering.LEASE,
    "PATIENCE": roll_call.PATIENCE,
    "STOPPED_AFTER": arbiter_client.STOPPED_AFTER,
    "hang_timeout": inspect.signature(DeviceArbiter).parameters["hang_timeout"].default,
    "CONNECT_TIMEOUT": arbiter_client.CONNECT_TIMEOUT,
    "RECONNECT_INTERVAL": "once a second" if arbiter_client.RECONNECT_INTERVAL == 1.0 else "no row",
    "MAX_PAUSE": throttle.MAX_PAUSE,
    "MAX_WAIT_FOR_ROOM": offload.MAX_WAIT_FOR_ROOM,
    "ANSWER_TIMEOUT": suspension.ANSWER_TIMEOUT,
    "MOVE_TIMEOUT": suspension.MOVE_TIMEOUT,
    "MAX_AGREEMENT_COST": 100 * ranks.MAX_AGREEMENT_COST,
    "MIN_TRAINING_PER_SAVE": 100 / MIN_TRAINING_PER_SAVE,
    "TRAINING_PER_CALL": 100 / metric_log.TRAINING_PER_CALL,
    "MIN_INTERVAL": 1000 * busy_timer.MIN_INTERVAL,
    "MAX_INTERVAL": 1000 * busy_timer.MAX_INTERVAL,
    "READ_AFTER": {2: "two", 3: "three"}.get(loss_meter.READ_AFTER, "no row"),
    "MAX_WAIT": console_lines.MAX_WAIT,
    "MAX_WRITE": best_model.MAX_WRITE,
    "CLOSE_TIMEOUT": participant.CLOSE_TIMEOUT,
    "timeout": inspect.signature(Mailbox.close).parameters["timeout"].default,
}


def calls() -> Iterator[str]:
    """Yield the calls that may block, as file, function and name."""
    for pattern in SCANNED:
        for path in sorted(ROOT.glob(pattern)):
            for function in ast.walk(ast.parse(path.read_text())):
                if isinstance(function, ast.FunctionDef):
                    yield from (f"{path.relative_to(ROOT)}:{function.name}:{name}" for name in _blocking(function))


def _blocking(function: ast.FunctionDef) -> Iterator[str]:
    for node in ast.walk(function):
        if not isinstance(node, ast.Call):
            continue
        name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
        of_text = isinstance(node.func, ast.Attribute) and isinstance(node.func.value, ast.Constant | ast.JoinedStr)
        if not of_text and (BLOCKS.fullmatch(name) or name.startswith("wait_for")):
            yield name


def rows() -> list[tuple[str, str, str]]:
    """Return the rows of the table."""
    text = (ROOT / "docs" / "faults.md").read_text()
    text = text.partition("## Where the training thread waits")[2].partition("\n## ")[0]
    return re.findall(r"^\| (.*?) \| (.*?) \| ?(.*?) ?\|$", text, re.MULTILINE)[1:]


def test_no_call_that_may_block_is_unknown() -> None:
    known = {f"{path}:{call}" for path, found in CALLS.items() for call in found}
    assert set(calls()) == known


def test_each_call_is_in_a_row_and_each_row_has_a_call() -> None:
    """Loggers are called in a row of their own, and no call there is known to block."""
    said = {row for found in CALLS.values() for row in found.values()} - {ELSEWHERE, NEVER, BELOW}
    assert {row for row in said if not any(first.startswith(row) for first, _, _ in rows())} == set()
    assert {first for first, _, _ in rows() if not first.startswith(tuple(said))} == {
        "for loggers that are given forecasts"
    }


def test_limits_are_those_of_the_code() -> None:
    assert {name for *_, names in rows() for name in re.findall(r"`(\w+)`", names)} == LIMITS.keys()
    for first, most, names in rows():
        for name in re.findall(r"`(\w+)`", names):
            limit = LIMITS[name]
            words = limit if isinstance(limit, str) else f"{limit:g} "
            assert words in f"{first} {most}", (first, name)


def test_threads_of_ours_are_not_the_training() -> None:
    """Calls elsewhere are made by the function of a thread, and by no hook."""
    source = {path: (ROOT / path).read_text() for path in CALLS}
    apart = {path for path, found in CALLS.items() if ELSEWHERE in found.values()}
    assert [path for path in apart if "threading.Thread(target=self._" not in source[path]] == [
        "lightning_core/agent/reporting/joining.py"  # its object is called by the thread of the mailbox
    ]
    assert "self._connect()" in source["lightning_core/agent/reporting/mailbox.py"]
