"""Message about a pool whose pool manager has gone silent: no process can reach or watch its workers."""

from __future__ import annotations

from lightning_core.core.durations import format_duration


def silence_line(seconds: float) -> str:
    """Return the message about a pool manager's silence, with the remedy.

    Example::

        >>> silence_line(130.0)[:60]
        'the pool manager has not called for 2m10s: nothing is launch'
    """
    return (
        f"the pool manager has not called for {format_duration(seconds)}: nothing is launched, and no lost worker is "
        "noticed. If the address of Ray's head or of this machine has changed, end Ray on all nodes, start it again, "
        "then run `lightning-core up`: jobs resume from their checkpoints"
    )
