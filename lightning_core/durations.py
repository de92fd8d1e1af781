"""Durations as people write them: ``90s``, ``1h30m``. Strict, because YAML reads 12:30 as 750 and nobody notices."""

from __future__ import annotations

import math
import re

_UNITS = {"d": 86400.0, "h": 3600.0, "m": 60.0, "s": 1.0}
# Forecasts of curves that hardly fall may say anything; beyond this nobody wants the figure.
FARTHEST = 30 * 365 * 86400.0
_FORM = re.compile(r"(?:(\d+(?:\.\d+)?)d)?(?:(\d+(?:\.\d+)?)h)?(?:(\d+(?:\.\d+)?)m)?(?:(\d+(?:\.\d+)?)s)?")


def parse_duration(text: object) -> float:
    """Seconds.

    Raises:
        ValueError: if it is not a string of the form ``2d``, ``1h30m``, ``90s``, ``0.5s``, or not positive.

    Example::

        >>> parse_duration("1h30m")
        5400.0
        >>> parse_duration(90)
        Traceback (most recent call last):
            ...
        ValueError: duration must be a string with units such as '90s' or '1h30m', got 90
    """
    match = _FORM.fullmatch(text) if isinstance(text, str) and text else None
    if match is None:
        raise ValueError(f"duration must be a string with units such as '90s' or '1h30m', got {text!r}")
    seconds = sum(float(part) * unit for part, unit in zip(match.groups(), _UNITS.values(), strict=True) if part)
    if seconds <= 0:
        raise ValueError(f"duration must be positive, got {text!r}")
    return seconds


def format_duration(seconds: float) -> str:
    """The shortest form with two parts at most.

    Example::

        >>> format_duration(5400), format_duration(42.31), format_duration(-3)
        ('1h30m', '42.3s', '-3.0s')
    """
    if seconds == math.inf:
        return "∞"
    if seconds > FARTHEST:
        return ">30y"
    if seconds < 0:
        return f"-{format_duration(-seconds)}"
    if seconds < 99.95:
        return f"{seconds:.1f}s"
    whole = round(seconds)
    parts: list[str] = []
    for unit, size in (("d", 86400), ("h", 3600), ("m", 60), ("s", 1)):
        count, whole = divmod(whole, size)
        if count or parts:
            parts.append(f"{count}{unit}" if count else "")
        if len(parts) == 2:
            break
    return "".join(parts)
