"""A trace: the faults of a pool and the history of its scheduler, in one file that replays anywhere.

``python -m tests.faults.trace FILE`` replays it to the first event that breaks a condition, and prints the condition.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple, Self

from lightning_core.core.codec import decode_event, encode_event
from lightning_core.scheduler.settings import Settings
from tests.faults.prefixes import Broken, History, Limits, first_broken


class Action(NamedTuple):
    """A fault that was caused."""

    at: float
    """Seconds since the killer began."""
    what: str
    whom: str


class Trace(NamedTuple):
    """A run under faults."""

    seed: int
    actions: Sequence[Action]
    history: History

    def write(self, path: Path) -> None:
        """Write it as JSON."""
        settings, events = self.history
        body = {
            "seed": self.seed,
            "actions": [action._asdict() for action in self.actions],
            "settings": settings.to_dict(),
            "events": [[now, json.loads(encode_event(event))] for now, event in events],
        }
        path.write_text(json.dumps(body, indent=1, allow_nan=False))

    @classmethod
    def read(cls, path: Path) -> Self:
        """Read what :meth:`write` has written."""
        body = json.loads(path.read_text())
        events = [(now, decode_event(json.dumps(event))) for now, event in body["events"]]
        actions = [Action(**action) for action in body["actions"]]
        return cls(body["seed"], actions, History(Settings(**body["settings"]), events))


def told(trace: Trace, broken: Broken | None) -> str:
    """Return the result of the replay as text."""
    lines = [f"seed {trace.seed}, {len(trace.history.events)} events"]
    lines += [f"{action.at:8.1f}s  {action.what} {action.whom}" for action in trace.actions]
    if broken is None:
        return "\n".join([*lines, "after every event everything holds"])
    for number in range(max(1, broken.number - 5), broken.number + 1):
        now, event = trace.history.events[number - 1]
        lines.append(f"event {number}, {now:.3f}s: {event}")
    for job in broken.scheduler.status():
        lines.append(
            f"  {job.name}: {job.state}, incarnation {job.incarnation}, "
            f"{job.share:.2f} of {job.devices}, {job.grant_reason}"
        )
    return "\n".join([*lines, f"broken: {broken.story}"])


def main(path: str) -> int:
    """Replay a trace; return exit code 1 if a condition is broken."""
    trace = Trace.read(Path(path))
    broken = first_broken(trace.history, Limits())
    print(told(trace, broken))
    return 0 if broken is None else 1


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
