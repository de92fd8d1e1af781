"""Numbers that a reader of YAML may have made of a time: there, 18:00 without quotes is 1080, in base 60.

A bundle is read by :mod:`lightning_core.bundle.yaml_loader`, which sees what is written. Libraries that construct
objects from a configuration pass on the number alone, and then a number of seconds and a time look the same.
"""

from __future__ import annotations

import sys

# Libraries that construct objects from YAML: LightningCLI does so with the first one.
READERS = ("jsonargparse", "hydra", "omegaconf")


def refuse_base_60(constructed: object, **durations: object) -> None:
    """Refuse a number that may have been a time, if a library that reads YAML constructs an object.

    Args:
        constructed: The object, whose ``__init__`` calls this.
        durations: Its arguments that are durations or points in time, as they were given.

    Raises:
        ValueError: If one is a number that base 60 can make; the message says how to write it.
    """
    if not _is_constructed_by_reader(constructed):
        return
    for name, value in durations.items():
        if isinstance(value, int | float) and value >= 60:
            raise ValueError(
                f"{name}: YAML reads {_in_base_60(value)} without quotes as {value:g} (base 60), so that a number may "
                f'have been a time; quote it, "{_in_base_60(value)}", or give a unit, {value:g}s'
            )


def _is_constructed_by_reader(constructed: object) -> bool:
    """Return whether the caller of the object's first ``__init__`` is such a library."""
    frame = sys._getframe(2)
    while frame is not None and frame.f_code.co_name == "__init__" and frame.f_locals.get("self") is constructed:
        frame = frame.f_back  # type: ignore[assignment]
    return frame is not None and str(frame.f_globals.get("__name__")).partition(".")[0] in READERS


def _in_base_60(value: float) -> str:
    """Return the text that YAML may have read, with as few colons as make a time of it.

    Example::

        >>> [_in_base_60(value) for value in (90, 1080, 5400, 90.5)]
        ['1:30', '18:00', '1:30:00', '1:30.5']
    """
    minutes, seconds = divmod(value, 60)
    least = f"{int(seconds):02}" if seconds == int(seconds) else f"{seconds:04.1f}"
    if minutes < 24:
        return f"{int(minutes)}:{least}"
    hours, minutes = divmod(minutes, 60)
    return f"{int(hours)}:{int(minutes):02}:{least}"
