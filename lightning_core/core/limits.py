"""Upper bounds of all input: a bundle, a journal, a message, the environment, or a program.

No real pool reaches them. They keep a wrong or hostile number from costing memory and time, and keep arithmetic within
the range in which sums and ratios of floats are meaningful.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any

Deadline = Annotated[float, "inf for none"]
"""Seconds, or inf for a job without a deadline: the only number that need not be finite."""
MAX_DEVICES = 1024
"""Devices of a pool."""
MAX_CORES = 4096
"""Cores of a device."""
MAX_RESIDENT = 100_000
"""Launched jobs that stay in memory, over all devices."""
MAX_JOBS = 1000
"""Jobs of one bundle."""
MAX_COUNT = 10**12
"""Batches, reports, restarts and other counts: floats still count sums of thousands of them exactly."""
MAX_MEMORY = 2**50
"""Bytes of a device's memory: a pebibyte."""
MAX_CELLS = 10_000
"""Loss cells of a window and the like."""
MAX_REPORTED_CELLS = 1000
"""Loss cells of one report; more are reported one report after the other."""
MAX_RATES = 200
"""Points of the learning rates of one training."""
MAX_HYPER_PARAMETERS = 200
"""Hyper-parameters that a training tells."""
MAX_SHOWN_VALUE = 200
"""Characters of the name and of the value of each."""
MAX_SECONDS = 100 * 365.25 * 86400.0
"""A hundred years."""
MIN_SECONDS = 1e-9
"""The shortest deadline, and the least work."""
MAX_FACTOR = 1e9
"""Weights, throughputs and prices: they lie between one over this and this."""
MAX_NAME = 200
"""Characters of the name of a metric, a location, an argument."""
MAX_TEXT = 2**13
"""Characters of a text, such as a path, or the end of a traceback, which stays in the journal and in every status."""
MAX_SEED = 2**64 - 1
"""Seeds."""
MAX_ITEMS = 100_000
"""Values in a list, such as the loss cells of a report."""
MAX_ARGUMENT = 1e12
"""Numbers in the arguments of a policy or an estimator."""
MAX_ARGUMENT_TEXT = 4096
"""Characters of a text among the arguments of a part."""
MAX_ARGUMENTS = 1000
"""Values in the arguments of a policy or an estimator."""


def format_bytes(amount: float) -> str:
    """Return an amount of memory as text.

    Example::

        >>> [format_bytes(amount) for amount in (512, 1610612736, 25 * 2**30, 2**50)]
        ['512B', '1.5GiB', '25GiB', '1,024TiB']
    """
    unit = "B"
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if amount < 1024 or unit == "TiB":
            break
        amount /= 1024
    return f"{amount:,.0f}{unit}" if amount >= 100 or unit == "B" else f"{amount:.3g}{unit}"


def shown(value: object, max_length: int = 60) -> str:
    """Return a value for a message, shortened; Python refuses to print integers of thousands of digits.

    Example::

        >>> shown("a"), shown(10**5000), shown("a" * 100)[:4]
        ("'a'", 'a number of more than 20 digits', "'aaa")
    """
    if isinstance(value, int) and abs(value) >= 10**20:
        return "a number of more than 20 digits"
    text = repr(value)
    return text if len(text) <= max_length else f"{text[: max_length - 3]}..."


def check_at_most(name: str, value: float | None, maximum: float) -> None:
    """Check that a number is not above its bound; None is not.

    Raises:
        ValueError: If it is above, or NaN; the message names the number, the bound and the value.

    Example::

        >>> check_at_most("devices", 10**9, MAX_DEVICES)
        Traceback (most recent call last):
        ...
        ValueError: devices must be at most 1,024, got 1000000000
    """
    if value is not None and not value <= maximum:
        raise ValueError(f"{name} must be at most {maximum:,.15g}, got {shown(value)}")


def check_seconds(name: str, value: float | None, minimum: float = 0.0) -> None:
    """Check that a number of seconds is at least a minimum and at most :data:`MAX_SECONDS`; None is.

    Raises:
        ValueError: If it is not.
    """
    if value is not None and value < minimum:
        raise ValueError(f"{name} must be at least {minimum:g} seconds, got {shown(value)}")
    if value is not None and not value <= MAX_SECONDS:
        raise ValueError(f"{name} must be at most 100 years ({MAX_SECONDS:.0f} seconds), got {shown(value)}")


def check_factor(name: str, value: float | None) -> None:
    """Check that a positive number lies between one over :data:`MAX_FACTOR` and :data:`MAX_FACTOR`; None does.

    Raises:
        ValueError: If it does not.
    """
    if value is not None and not 1 / MAX_FACTOR <= value <= MAX_FACTOR:
        raise ValueError(f"{name} must be {1 / MAX_FACTOR:g} to {MAX_FACTOR:g}, got {shown(value)}")


def check_length(name: str, value: str, maximum: int = MAX_NAME) -> None:
    """Check that a text is not too long.

    Raises:
        ValueError: If it is.
    """
    if len(value) > maximum:
        raise ValueError(f"{name} must have at most {maximum:,} characters, got {len(value):,}")


def check_arguments(name: str, value: object) -> None:
    """Check the arguments of a policy or an estimator: how many values there are, and how large numbers and texts are.

    Raises:
        ValueError: If there are too many, or one is too large.

    Example::

        >>> check_arguments("policy", {"explore": 10**400})
        Traceback (most recent call last):
        ...
        ValueError: policy: numbers must be at most 1,000,000,000,000, got a number of more than 20 digits
    """
    left, count = [value], 0
    while left:
        one = left.pop()
        count += 1
        if count > MAX_ARGUMENTS:
            raise ValueError(f"{name}: must have at most {MAX_ARGUMENTS:,} values")
        if isinstance(one, str):
            check_length(f"{name}: a text", one, MAX_ARGUMENT_TEXT)  # it may be the path of a file
        elif isinstance(one, Mapping):
            left += [*one.keys(), *one.values()]
        elif isinstance(one, Sequence):
            left += one
        elif isinstance(one, int | float):
            _check_argument(name, one)


def _check_argument(name: str, value: Any) -> None:
    if abs(value) > MAX_ARGUMENT and abs(value) != float("inf"):  # infinite ones are for the policy to refuse or take
        raise ValueError(f"{name}: numbers must be at most {MAX_ARGUMENT:,.0f}, got {shown(value)}")
