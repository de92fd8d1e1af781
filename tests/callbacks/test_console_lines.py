"""Messages beside a progress bar begin on lines of their own, on the screen and in a job's log."""

from __future__ import annotations

import io
import logging
import re
import sys
import threading
from collections.abc import Iterator
from typing import Any

import lightning.pytorch as pl
import pytest
from lightning.pytorch.callbacks import ProgressBar, RichProgressBar, TQDMProgressBar

from lightning_core.callbacks import CoreCallback
from lightning_core.core.targets import BatchTarget
from lightning_core.view.console_lines import inform, logger
from lightning_core.view.log_lines import LogLines
from tests.tiny import Line, Points

QUIET = {"accelerator": "cpu", "logger": False, "enable_checkpointing": False, "enable_model_summary": False}
OURS = logger("lightning_core.callbacks.of_this_test")


class Talk(pl.Callback):
    """Prints and logs after some batches, also from another thread."""

    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        if batch_idx == 3:
            OURS.warning("warned")
        if batch_idx == 6:
            thread = threading.Thread(target=inform, args=("from another thread",))
            thread.start()
            thread.join()


class Screen(io.StringIO):
    """A stream that stands for both streams of a process."""

    def isatty(self) -> bool:
        return True


@pytest.fixture
def screen() -> Iterator[Screen]:
    made = Screen()
    handler = logging.StreamHandler(made)
    loggers = [OURS.logger, logging.getLogger("lightning.pytorch.utilities.rank_zero")]
    levels = [each.level for each in loggers]
    for each in loggers:
        each.addHandler(handler)
        each.setLevel(logging.INFO)
    yield made
    for each, level in zip(loggers, levels, strict=True):
        each.removeHandler(handler)
        each.setLevel(level)


def fit(bar: ProgressBar) -> None:
    callback = CoreCallback("line", deadline="60s", target=BatchTarget(10), pool="local")
    pl.Trainer(**QUIET, max_epochs=2, callbacks=[bar, Talk(), callback]).fit(Line(pause=0.02), Points())  # type: ignore[arg-type]


def test_messages_do_not_break_a_tqdm_progress_bar(screen: Screen, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdout", screen)  # not in the fixture: pytest puts its own there after it
    fit(TQDMProgressBar(refresh_rate=1))
    text = screen.getvalue()
    assert len(re.findall(r"\rEpoch \d: +\d+%\|", text)) > 10  # it was drawn, and again after each message
    for words in ("warned", "from another thread", "lightning_core: line: met"):
        assert re.search(rf"[\r\n]{words}[^\r\n]*\n", text), text
        assert not re.search(rf"[^\r\n]{words}", text), text
    drawn = text.split("warned\n", 1)[1]
    assert re.match(r"\r+Epoch \d: +\d+%\|", drawn), drawn[:80]


def test_messages_do_not_break_a_rich_progress_bar(screen: Screen) -> None:
    fit(RichProgressBar(refresh_rate=1, console_kwargs={"force_terminal": True, "file": screen, "width": 80}))
    text = screen.getvalue()
    assert text.count("Epoch") >= 2
    for words in ("warned", "from another thread", "lightning_core: line: met"):
        found = re.search(rf"(?:\n|\r\x1b\[2K){words}[^\r\n]*\n", text)
        assert found, text


def test_the_user_s_logging_is_unchanged() -> None:
    assert not logging.getLogger().filters
    for name in ("lightning", "lightning.pytorch", "lightning_utilities.core.rank_zero", "lightning_core"):
        assert not logging.getLogger(name).filters


# ---------------------------------------------------------------------------------------------------- logs


BAR = "Epoch 0:  {0}%|###       | {0}/100 [00:01<00:02, 30.1it/s, v_num=0]"


@pytest.mark.parametrize(
    ("text", "lines"),
    [
        ("one\ntwo\n", ["one", "two"]),
        ("one\r\ntwo\r\n", ["one", "two"]),
        ("one\n\ntwo\n", ["one", "", "two"]),
        ("\r" + "\r".join(map(BAR.format, range(10, 35))) + "\n", [BAR.format(34)]),
        (f"\r{BAR.format(10)}\r{BAR.format(11)}saved a model\n", [BAR.format(11), "saved a model"]),
        (f"\r{BAR.format(10)}saved a model\r{BAR.format(11)}\n", ["saved a model", BAR.format(11)]),
        (f"\r{BAR.format(10)}\r{' ' * 70}\rsaved a model\n\r{BAR.format(11)}\n", ["saved a model", BAR.format(11)]),
        (f"{BAR.format(10)}\x1b[A\n", [BAR.format(10)]),
        ("\x1b[31mred\x1b[0m \x1b[2J\x07and \u202eturned\n", ["red and turned"]),
        ("90%|not a bar| [x]y\n", ["90%|not a bar| [x]y"]),
    ],
)
def test_lines_of_a_log_are_shown_complete(text: str, lines: list[str]) -> None:
    data = text.encode()
    log = LogLines()
    assert log.feed(data) == lines
    assert log.rest() == []
    pieces = LogLines()
    assert [line for byte in data for line in pieces.feed(bytes([byte]))] == lines  # characters and lines in parts


def test_an_incomplete_line_waits_for_its_end() -> None:
    log = LogLines()
    assert log.feed(f"begun\n\r{BAR.format(10)}".encode()) == ["begun"]
    assert log.rest() == [BAR.format(10)]
    assert log.rest() == []
    assert log.feed(f"\r{BAR.format(11)}\n".encode()) == [BAR.format(11)]
    assert log.feed(b"\xff\n") == ["\ufffd"]
