"""A signal that comes while a training is held ends it as Lightning does elsewhere, on one rank and on two."""

from __future__ import annotations

import os
import signal
import threading
import time
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import pytest

from lightning_core.core.answers import Grant
from tests.callbacks.test_callback import ConnectedScript, Script, grant
from tests.matrix.collectives import difference
from tests.matrix.forks import Forks
from tests.matrix.training import ours_left
from tests.tiny import QUIET, Line, Points

PATIENCE = 30.0


def train(ranks: int, held: bool, flag: str) -> dict[str, Any]:
    """Train for good, until SIGTERM comes to all ranks: while they are held, or between two batches."""
    client = Script(grant(1, 1.0))
    ours = ConnectedScript("job", "1000000 batches", client=client)
    first = int(os.environ.get("RANK", "0")) == 0
    threading.Thread(target=send, args=(ours if held else None, client, Path(flag), first), daemon=True).start()
    more: dict[str, Any] = {"strategy": "ddp", "devices": ranks} if ranks > 1 else {}
    trainer = pl.Trainer(**QUIET, **more, max_epochs=-1, callbacks=[ours] if held else [])
    ended = ""
    try:
        trainer.fit(Line(pause=0.01), datamodule=Points())
    except BaseException as error:
        ended = type(error).__name__
    return {"ended": ended, "ours": ours_left(), "stopped": trainer.global_step < 1000}


def send(ours: ConnectedScript | None, client: Script, flag: Path, first: bool) -> None:
    """Send this process SIGTERM once rank 0 is held, if it is to be, or else has trained a little."""
    until = time.monotonic() + PATIENCE
    while time.monotonic() < until and not callable(signal.getsignal(signal.SIGTERM)):
        time.sleep(0.01)  # Lightning has no handler yet
    time.sleep(0.2)
    if first:
        if ours is not None:
            while time.monotonic() < until and (not client.reports or client.reports[-1].batches < 3):
                time.sleep(0.01)
            before = client.directive
            assert isinstance(before, Grant)
            client.say(before._replace(version=2, share=0.0))
            while time.monotonic() < until and not (ours._fit and ours._fit.mailbox and ours._fit.mailbox.inbox.parked):
                time.sleep(0.01)
        flag.touch()
    while time.monotonic() < until and not flag.exists():
        time.sleep(0.01)
    os.kill(os.getpid(), signal.SIGTERM)


@pytest.mark.promise("R30", "R31")
@pytest.mark.parametrize("ranks", [1, 2])
def test_a_signal_in_a_hold_ends_a_training_as_elsewhere(ranks: int, forks: Forks, tmp_path: Path) -> None:
    """On one rank as without us. Of two, Lightning's handlers may wait for each other for ever, but not in a hold."""
    run = "tests.callbacks.test_signals_in_hold:train"
    seen = forks.run(run, ranks, True, str(tmp_path / "with"), ranks=ranks)
    ended = 0, {"ended": "SIGTERMException", "ours": [], "stopped": True}
    assert [(one.code, one.value) for one in seen] == [ended] * ranks, seen[0].output[-5000:]
    assert not difference([one.collectives for one in seen])
    if ranks == 1:
        [without] = forks.run(run, ranks, False, str(tmp_path / "without"))
        assert (without.code, without.value) == ended
