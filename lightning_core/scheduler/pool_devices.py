"""The devices of a pool: which kind each is of, and on which machine it is."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np

from lightning_core.core.arrays import IntArray
from lightning_core.core.jobs import Job, Spread
from lightning_core.core.row_cache import Memo
from lightning_core.core.saved_state import Stateful
from lightning_core.scheduler.settings import Settings

Devices = tuple[int, ...]

# Kind of a device whose own is unknown, where those of others are known.
OTHER = "other"
# Answers about where jobs may be that are remembered.
MAX_KNOWN = 1000


class PoolDevices(Stateful):
    """Kinds and machines of a pool's devices.

    The names that the settings give are kinds. Without them they are those that the pool has found, if any.

    Args:
        settings: Settings of the scheduler.

    Attributes:
        kinds: Name of the kind of each device; empty while all are alike.
        machines: Name of the machine of each device; empty while it is unknown.
        names: Names of all kinds that there have been. The place of one is its index, for good.
    """

    STATE = ("kinds", "machines", "names")

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self.kinds: tuple[str, ...] = settings.locations
        self.machines: tuple[str, ...] = ()
        self.names: tuple[str, ...] = ()
        self._look()

    def _look(self) -> None:
        self.names = tuple(dict.fromkeys((*self.names, *self.kinds)))
        self.of: IntArray = np.array([self.names.index(kind) for kind in self.kinds], np.int64)
        """Index of the kind of each device; empty while all are alike."""
        # A device whose machine is unknown counts as on a machine of its own.
        names = [name or f"device {device}" for device, name in enumerate(self.machines)]
        self.machine_of: tuple[int, ...] = tuple(map([*dict.fromkeys(names)].index, names))
        """Index of the machine of each device; empty while all are on one."""
        self._most = Memo()
        self._every = tuple(range(len(self.names)))
        self._allowed = Memo()

    def restore(self, state: Mapping[str, Any]) -> None:
        """Restore a state that :meth:`state` returned."""
        super().restore(state)
        self._look()

    @property
    def differ(self) -> bool:
        """Whether there are several kinds."""
        return len(self.names) > 1

    @property
    def on_several_machines(self) -> bool:
        """Whether the devices are on several machines, as far as is known."""
        return bool(self.machine_of)

    def after(self, kinds: Sequence[str], machines: Sequence[str]) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Return the kinds and the machines once the pool has found some; what it has not found stays as it was.

        Args:
            kinds: Kind of each device, an empty name if unknown; empty, or of another length, if nothing is known.
            machines: Machine of each device, likewise.
        """
        n = self._settings.devices
        return (
            self._settings.locations or _known(self.kinds, kinds, n, OTHER),
            _known(self.machines, machines, n, ""),
        )

    def find(self, kinds: Sequence[str], machines: Sequence[str]) -> None:
        """Take what the pool has found of its devices; see :meth:`after`."""
        self.kinds, self.machines = self.after(kinds, machines)
        self._look()

    def counts(self, unavailable: Collection[int], *, together: bool = False) -> IntArray:
        """Return how many devices of each kind can have workers, shape ``(k,)``.

        Args:
            unavailable: Devices that cannot.
            together: Whether to count those of the machine that has most of them.
        """
        of, found = self.of.tolist(), list[int]()
        for kind in range(len(self.names)):
            there = [device for device, one in enumerate(of) if one == kind and device not in unavailable]
            found.append(self.together(there) if together else len(there))
        return np.array(found, np.int64)

    def allowed_kinds(self, job: Job) -> tuple[int, ...]:
        """Return the kinds on which a job may be."""
        if job.device is not None:
            return (int(self.of[job.device]),) if job.device < len(self.of) else ()
        wanted = [job.location] if job.location in self.names else job.kinds
        if not wanted:
            return self._every
        return tuple(k for k, name in enumerate(self.names) if name in wanted)

    def allowed(self, job: Job, kind: int = -1) -> Devices:
        """Return the devices on which a job may be, of one kind or of any.

        Args:
            job: The job.
            kind: Index of the kind; -1 for any.
        """
        key = job.location, kind, *((job.kinds, job.device) if kind < 0 else ())
        if (found := self._allowed.get(key)) is None:
            found = self._settings.devices_at(job.location)
            if self.kinds:
                kinds, of = self.allowed_kinds(job) if kind < 0 else (kind,), self.of.tolist()
                found = tuple(device for device in found if of[device] in kinds)
            if len(self._allowed) >= MAX_KNOWN:
                self._allowed.clear()
            self._allowed[key] = found
        return found

    def together(self, devices: Collection[int]) -> int:
        """Return the largest number of some devices that are on one machine."""
        if not self.machine_of:
            return len(devices)
        return max(Counter(self.machine_of[device] for device in devices).values(), default=0)

    def most(self, job: Job, unavailable: frozenset[int] = frozenset()) -> int:
        """Return how many devices a job may have at most: of one kind, and on one machine unless it may spread.

        Args:
            job: The job.
            unavailable: Devices that do not count.
        """
        key = job.location, job.kinds, job.device, job.spread, unavailable
        found: int | None = self._most.get(key)
        if found is not None:
            return found
        found = 0
        for kind in self.allowed_kinds(job) if self.kinds else (-1,):
            there = [device for device in self.allowed(job, kind) if device not in unavailable]
            found = max(found, len(there) if job.spread is Spread.POOL else self.together(there))
        if len(self._most) >= MAX_KNOWN:
            self._most.clear()
        self._most[key] = found
        return found

    def are_apart(self, home: Devices) -> bool:
        """Return whether some devices are on several machines."""
        return bool(self.machine_of) and len({self.machine_of[device] for device in home}) > 1

    def rates_name(self, kind: int) -> str:
        """Return the name under which the rates on a kind are kept; for -1 that where all devices are alike."""
        return self.names[kind] if kind >= 0 else ""

    def kind_of(self, home: Devices) -> int:
        """Return the kind of some devices that are alike; -1 for none."""
        return int(self.of[home[0]]) if home and len(self.of) else -1


def _known(before: tuple[str, ...], found: Sequence[str], n: int, unknown: str) -> tuple[str, ...]:
    if len(found) != n or not any(found):
        return before
    return tuple(new or old for new, old in zip(found, before or (unknown,) * n, strict=True))
