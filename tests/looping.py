"""A script with a loop of its own, which is a launched job by the contract alone, or by ``track``: no torch.

``python tests/looping.py [--track] [--folder] [--pause S] [--raise-at N] [--die-at N] [--give-up-at N] [--deaf]
[--alone] [--child] [--code N] [--wrapped]``
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from lightning_core.agent.launched_script import RELEASED_CODE, LaunchedScript, launched_script
from lightning_core.core.answers import Directive, End, Grant, Verdict
from lightning_core.core.events import Cell, Report
from lightning_core.core.protocols import Client


class Loop:
    """Trains, reports after each batch, takes turns, and obeys."""

    def __init__(self, launched: LaunchedScript, options: argparse.Namespace) -> None:
        self.launched, self.options = launched, options
        self.client: Client = launched.client()
        self.lock = launched.device_lock()
        self.number = self.version = 0
        self.directive: Directive | None = None
        self.busy = 0.0
        self.batches = self.start = 0 if launched.resume_path is None else self.load(launched.resume_path)
        print(f"incarnation {launched.incarnation} begins at {self.batches} on {launched.devices}", flush=True)

    def load(self, path: Path) -> int:
        text = (path / "state.json" if self.options.folder else path).read_text()
        return int(json.loads(text)["batches"])

    def save(self) -> None:
        with self.launched.saving(self.batches) as path:
            if self.options.folder:
                path.mkdir()
                path = path / "state.json"
            path.write_text(json.dumps({"batches": self.batches}))

    def tell(self, *cells: Cell) -> None:
        self.number += 1
        report = Report(
            self.launched.job, self.launched.incarnation, self.number, self.version, self.batches, self.busy, cells,
            batches_at_start=self.start, checkpoint=self.launched.last_checkpoint,
        )  # fmt: skip
        while True:
            try:
                self.take(self.client.report(report))
                return
            except ConnectionError:
                time.sleep(0.1)

    def take(self, news: Directive | None) -> None:
        if news is not None:
            self.directive = news
            self.version = news.version

    def obey(self) -> Iterator[None]:
        """Yield while it may train; leave when it has to."""
        while True:
            match self.directive:
                case End(verdict=verdict):
                    print(f"over: {verdict}", flush=True)
                    if not self.options.deaf:
                        if verdict is Verdict.MET:
                            return
                        sys.exit(0)
                case Grant(devices=devices) if tuple(devices) != self.launched.devices and not self.options.deaf:
                    self.save()
                    print(f"released after {self.batches}", flush=True)
                    self.tell()
                    if self.options.wrapped:
                        self.launched.note_release()
                        sys.exit(1)
                    sys.exit(RELEASED_CODE)
                case Grant(share=share) if share > 0 or self.options.deaf:
                    yield
                    continue
            try:
                self.take(self.client.wait(self.launched.job, self.version, 1.0))
            except ConnectionError:
                time.sleep(0.1)
            self.tell()

    def run(self) -> None:
        self.tell()
        for _ in self.obey():
            if self.lock is not None:
                while not self.lock.acquire(1.0, 1.0):
                    pass
            began = time.monotonic()
            self.batch()
            self.busy += time.monotonic() - began
            if self.lock is not None and self.lock.expired():
                self.lock.release(again=False)
            if self.launched.due():
                self.save()
            self.tell(Cell(self.batches, self.batches, 1.0 / self.batches))

    def batch(self) -> None:
        self.batches += 1
        time.sleep(self.options.pause)
        if self.launched.incarnation > 1:
            return  # it fails once
        if self.batches == self.options.raise_at:
            raise ValueError("this script was made to fail")
        if self.batches == self.options.die_at:
            os.kill(os.getpid(), signal.SIGKILL)
        if self.batches == self.options.give_up_at:
            self.launched.give_up("at a place\nhung for 9 minutes")


def track(options: argparse.Namespace) -> None:
    """Train as a user's script does."""
    import lightning_core

    script = launched_script()
    with lightning_core.track() as run:
        batches = 0
        if run.resume_path is not None:
            state = json.loads(run.resume_path.read_text())
            run.load_state_dict(state)
            batches = int(state["batches"])
        if script is not None:
            print(f"incarnation {script.incarnation} begins at {batches} on {script.devices}", flush=True)

        def save(path: Path) -> None:
            path.write_text(json.dumps(run.state_dict()))
            print(f"released after {run.state_dict()['batches']}", flush=True)

        run.save_with(save)
        while not run.over:
            batches += 1
            time.sleep(options.pause)
            run.step(loss=1.0 / batches)
    print("after the training", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser()
    for name in ("--track", "--folder", "--deaf", "--alone", "--child", "--wrapped"):
        parser.add_argument(name, action="store_true")
    parser.add_argument("--pause", type=float, default=0.002)
    for name in ("--raise-at", "--die-at", "--give-up-at", "--code"):
        parser.add_argument(name, type=int, default=0)
    options = parser.parse_args()
    if options.child:  # in a session of its own, so that no signal to the group reaches it
        child = subprocess.Popen(["sleep", "600"], start_new_session=True)
        print(f"child {child.pid}", flush=True)
    if options.track:
        track(options)
        return
    launched = None if options.alone else launched_script()
    if launched is not None:
        Loop(launched, options).run()
        print("after the training", flush=True)
    sys.exit(options.code)


if __name__ == "__main__":
    main()
