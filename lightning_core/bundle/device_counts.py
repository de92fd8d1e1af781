"""On how many devices a job can train, and how many micro-batches its step then has."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def micro_batches_of(config: Mapping[str, Any], most: int) -> int:
    """How many micro-batches a step of a job has: as on its largest number of devices.

    Args:
        config: of LightningCLI.
        most: devices that the job takes at most, whatever the pool has.

    Example::

        >>> micro_batches_of({"trainer": {"accumulate_grad_batches": 2}}, 3)
        6
    """
    trainer = config.get("trainer")
    accumulated = trainer.get("accumulate_grad_batches") if isinstance(trainer, Mapping) else None
    return most * max(accumulated, 1) if type(accumulated) is int else most  # else the parser has something to say


def sizes(slots: int, least: int, most: int) -> tuple[int, ...]:
    """Numbers of devices that can share a step of so many micro-batches; none if it is only one.

    Example::

        >>> sizes(6, 1, 3), sizes(8, 2, 8), sizes(3, 2, 3)
        ((1, 2, 3), (2, 4, 8), ())
    """
    found = tuple(size for size in range(least, most + 1) if slots % size == 0)
    return found if len(found) > 1 else ()
