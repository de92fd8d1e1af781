"""Readers of numbers that people write in a bundle."""

from __future__ import annotations

from typing import Any

from lightning_core.core.limits import shown


def positive_int(value: Any, maximum: int | None = None) -> int:
    """Read an integer of at least 1.

    Raises:
        ValueError: If it is no integer (a bool is none), or out of range.
    """
    if isinstance(value, bool) or not isinstance(value, int) or value < 1 or (maximum is not None and value > maximum):
        limit = "of at least 1" if maximum is None else f"from 1 to {maximum}"
        raise ValueError(f"must be a whole number {limit}, got {shown(value)}")
    return value


def read_number(value: Any) -> float:
    """Read a number.

    Raises:
        ValueError: If it is none; a bool is none.
    """
    if isinstance(value, str):  # YAML 1.1 reads 1e-3 as text
        try:
            return float(value)
        except ValueError:
            pass
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError(f"must be a number, got {shown(value)}")
    try:
        return float(value)
    except OverflowError:
        raise ValueError(f"must be a number that a float can hold, got {shown(value)}") from None
