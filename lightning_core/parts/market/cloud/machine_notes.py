"""Notes about simulated nodes: one file for each that is there, and an invoice with a line for each that has ended."""

from __future__ import annotations

import json
import secrets
import time
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from lightning_core.node.processes import is_alive, is_marked, started
from lightning_core.storage.atomic_files import write_whole

# Variable with the mark of a node.
MARK = "LIGHTNING_CORE_NODE"
INVOICE = "invoice.jsonl"


@dataclass
class Machine:
    """A process in place of a machine. Times are monotonic, which is since boot for all processes."""

    number: int
    market_type: str
    mark: str = field(default_factory=lambda: secrets.token_hex(16))
    pid: int = 0
    started: int = 0
    since: float = field(default_factory=time.monotonic)
    ends_at: float | None = None
    """Time at which it is switched off; None while it stays."""
    zone: str = ""
    type: str = ""

    @property
    def place(self) -> tuple[str, str]:
        """Its zone and its type."""
        return self.zone, self.type

    @property
    def is_alive(self) -> bool:
        """Whether its process runs."""
        return bool(self.pid) and is_alive(asdict(self))


class MachineNotes:
    """Notes of a provisioner, which find its nodes again whenever it was killed.

    Args:
        folder: Private folder; it is made if there is none.
    """

    def __init__(self, folder: Path) -> None:
        folder.mkdir(mode=0o700, exist_ok=True)
        self.folder = folder

    def find(self) -> list[Machine]:
        """Return the nodes of an earlier provisioner that still run; the notes of others are closed."""
        found = []
        billed = {row["node"] for row in self.invoice()}
        for path in sorted(self.folder.glob("node-*.json")):
            machine = Machine(**json.loads(path.read_text()))
            if not machine.pid:  # it was killed before it could note the process
                machine.pid = next((pid for pid in _processes() if is_marked(pid, MARK, machine.mark)), 0)
                machine.started = started(machine.pid) or 0 if machine.pid else 0
            if machine.is_alive:
                self.write(machine)
                found.append(machine)
            elif machine.number in billed or not machine.pid:  # it was killed between the two, or before there was one
                path.unlink()
            else:
                self.close(machine)
        return found

    def write(self, machine: Machine) -> None:
        """Record the current state of a node."""
        write_whole(self._path(machine), json.dumps(asdict(machine)))

    def close(self, machine: Machine) -> None:
        """Write the cost of a node into the invoice, once it has ended."""
        row = {"node": machine.number, "market_type": machine.market_type, "since": machine.since,
               "until": time.monotonic(), "zone": machine.zone, "type": machine.type}  # fmt: skip
        with (self.folder / INVOICE).open("ab+") as file:
            file.seek(max(file.tell() - 1, 0))
            whole = file.read() in (b"", b"\n")  # else a provisioner was killed while it wrote the last line
            file.write(("" if whole else "\n").encode() + json.dumps(row).encode() + b"\n")
        self._path(machine).unlink(missing_ok=True)

    def invoice(self) -> list[dict[str, Any]]:
        """Return the lines of the invoice; one that was not written to its end is left out."""
        rows = []
        with suppress(FileNotFoundError), (self.folder / INVOICE).open() as file:
            for line in file:
                with suppress(ValueError):
                    rows.append(json.loads(line))
        return rows

    def newest(self) -> int:
        """Return the highest number that a node had."""
        noted = [int(path.stem.removeprefix("node-")) for path in self.folder.glob("node-*.json")]
        return max([*noted, *(row["node"] for row in self.invoice())], default=0)

    def _path(self, machine: Machine) -> Path:
        return self.folder / f"node-{machine.number:06}.json"


def _processes() -> list[int]:
    return [int(path.name) for path in Path("/proc").glob("[0-9]*")]
