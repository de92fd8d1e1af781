"""Jobs of a pool as the market sees them: their measured speed, interval by interval, and the lessons of those that are over.

A job that has ended tells what each spot policy would have made of it: it is played again through the prices that came,
at the speed that was measured, up to its deadline (counterfactual replay, Kong et al., algorithm 2). The market must
have come that far, so it teaches once its deadline has passed.
"""

from __future__ import annotations

from lightning_core.core.speedup import SpeedUp
from lightning_core.core.targets import BatchTarget
from lightning_core.scheduler.scheduler import Scheduler


def throughput_table(speed: SpeedUp, interval: float, max_nodes: int | None = None) -> tuple[int, tuple[float, ...]]:
    """A job's measured speed as the market's table H(n).

    Args:
        speed: what was learned of it.
        interval: seconds.
        max_nodes: instances to tell of; none: the largest of its sizes.

    Returns:
        The fewest instances that it needs, and batches in an interval on 0, 1, .. of them; on a number between two of its
        sizes as many as on the smaller.

    Raises:
        ValueError: if nothing is known of its speed.

    Example::

        >>> throughput_table(SpeedUp((1, 2, 4), (1.0, 1.8, 3.0)), interval=100.0)
        (1, (0.0, 100.0, 180.0, 180.0, 300.0))
    """
    if not speed.known:
        raise ValueError("a job's speed must be known, nothing has been seen of it")
    min_nodes, max_nodes = speed.sizes[0], max_nodes or speed.sizes[-1]
    table = [0.0]
    for number in range(1, max_nodes + 1):
        size = max((one for one in speed.sizes if one <= number), default=None)
        table.append(0.0 if size is None else max(table[-1], interval * speed.rate(size)))
    return min_nodes, tuple(table)


def batches_left(scheduler: Scheduler, name: str) -> float:
    """Batches that a job has still to do.

    Raises:
        ValueError: if its target is a loss: nobody knows.
    """
    target = scheduler.job(name).target
    if not isinstance(target, BatchTarget):
        raise ValueError(f"job {name!r}: its target is a loss: say how much work is left")
    return float(max(target.batches - scheduler.last(name).batches, 1))
