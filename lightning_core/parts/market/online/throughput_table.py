"""A job's measured throughput as the market's table H(n)."""

from __future__ import annotations

from lightning_core.core.speedup import SpeedUp


def throughput_table(speed: SpeedUp, interval: float, max_nodes: int | None = None) -> tuple[int, tuple[float, ...]]:
    """Return a job's measured throughput as the market's table H(n).

    Args:
        speed: Measured throughput by number of devices.
        interval: Seconds of an interval.
        max_nodes: Number of nodes at which the table ends; None for the largest of the job's sizes.

    Returns:
        The fewest nodes that the job needs, and the batches of an interval on 0, 1, ... nodes. On a number between two
        of its sizes it does as many as on the smaller one.

    Raises:
        ValueError: If nothing is known of its throughput.

    Example::

        >>> throughput_table(SpeedUp((1, 2, 4), (1.0, 1.8, 3.0)), interval=100.0)
        (1, (0.0, 100.0, 180.0, 180.0, 300.0))
    """
    if not speed.known:
        raise ValueError("the job's throughput must be known, but it has not trained yet")
    min_nodes, max_nodes = speed.sizes[0], max_nodes or speed.sizes[-1]
    table = [0.0]
    for number in range(1, max_nodes + 1):
        size = max((one for one in speed.sizes if one <= number), default=None)
        table.append(0.0 if size is None else max(table[-1], interval * speed.throughput(size)))
    return min_nodes, tuple(table)
