"""Causes of the end of a script, from its exit code and the end of what it has printed."""

from __future__ import annotations

import pytest

from lightning_core.core.events import ExitCause
from lightning_core.worker.exit_causes import STORY_LINES, exit_of_script

TRACE = 'Traceback (most recent call last):\n  File "train.py", line 3, in <module>\n    main()\n'


@pytest.mark.parametrize(
    ("code", "output", "cause", "last"),
    [
        (1, f"epoch 1\n{TRACE}ValueError: no such column", ExitCause.RAISED, "ValueError: no such column"),
        (1, f"{TRACE}mine.OddError\nwandb: synced 3 files", ExitCause.RAISED, "mine.OddError"),
        (1, f"{TRACE}KeyError: 'a'\n\nDuring handling of the above exception, another exception occurred:\n\n"
            f"{TRACE}ValueError: b", ExitCause.RAISED, "ValueError: b"),
        (1, f"{TRACE}torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB", ExitCause.OUT_OF_MEMORY,
         "OOM: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB"),
        (1, f"{TRACE}MemoryError\n\nThe above exception was the direct cause of the following exception:\n\n"
            f"{TRACE}RuntimeError: no more", ExitCause.OUT_OF_MEMORY, "OOM: MemoryError"),
        (1, f"{TRACE}MemoryError\nsmaller batches\n{TRACE}KeyError: 3", ExitCause.RAISED, "KeyError: 3"),
        (1, f"{TRACE}MemoryError", ExitCause.OUT_OF_MEMORY, "OOM: MemoryError"),
        (1, f"{TRACE}RuntimeError: DefaultCPUAllocator: can't allocate memory: you tried to allocate 9 bytes",
         ExitCause.OUT_OF_MEMORY, "OOM: RuntimeError: DefaultCPUAllocator: can't allocate memory: you tried to "
         "allocate 9 bytes"),
        (1, "MemoryError is what this line is about", ExitCause.RAISED, "the script ended with exit code 1"),
        (2, "", ExitCause.RAISED, "the script ended with exit code 2"),
        (-15, "epoch 1", ExitCause.LOST, "the script was killed by SIGTERM"),
        (-40, "", ExitCause.LOST, "the script was killed by signal 40"),
    ],
)  # fmt: skip
def test_the_cause_and_the_story(code: int, output: str, cause: ExitCause, last: str) -> None:
    found, story = exit_of_script(code, output)
    assert (found, story.splitlines()[-1]) == (cause, last)
    assert output.splitlines()[:1] == story.splitlines()[: len(output.splitlines()[:1])]


def test_a_long_output_keeps_its_end() -> None:
    _, story = exit_of_script(1, "\n".join(f"line {k}" for k in range(1000)))
    assert len(story.splitlines()) == STORY_LINES + 1
    assert "line 999" in story
