"""Reading the values of the options of ``simulate``: policies, delays, and times at which workers die."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields

from lightning_core.core.durations import parse_duration
from lightning_core.core.names import did_you_mean
from lightning_core.simulation.scenario import Delays

DELAYS = tuple(field.name for field in fields(Delays))


def parse_policies(given: Sequence[str]) -> list[str]:
    """Parse the names of policies, each with its arguments, from options that hold one or several.

    Raises:
        ValueError: If a policy is named twice.

    Example::

        >>> parse_policies(["fifo,lara:order=edf,explore=5,edf", "rr"])
        ['fifo', 'lara:order=edf,explore=5', 'edf', 'rr']
    """
    policies: list[str] = []
    for text in given:
        own: list[str] = []
        for part in text.split(","):
            if own and "=" in part and ":" not in part:  # another argument of the policy before it
                own[-1] += f",{part}"
            else:
                own.append(part)
        policies += own
    if twice := [policy for policy in policies if policies.count(policy) > 1]:
        raise ValueError(f"--policy: {twice[0]!r} is named twice")
    return policies


def parse_delays(text: str) -> Delays:
    """Parse delays such as ``switch=0.2,report=100ms``: fields of :class:`Delays` with seconds or durations.

    Raises:
        ValueError: If a name is unknown or a value is out of range.

    Example::

        >>> parse_delays("switch=0.2,release=3s").switch
        0.2
    """
    values: dict[str, float] = {}
    for part in filter(None, text.split(",")):
        name, _, value = part.partition("=")
        if name not in DELAYS:
            raise ValueError(f"--delays: unknown delay {name!r}{did_you_mean(name, DELAYS)}")
        try:
            values[name] = float(value) if value[-1:].isdigit() else parse_duration(value)
        except ValueError:
            raise ValueError(f"--delays: {name} must be seconds, such as {name}=0.2, got {value!r}") from None
    return Delays(**values)


def parse_losses(text: str) -> dict[str, list[float]]:
    """Parse times at which workers die, such as ``vit=20m,vit=90s``, into seconds by job.

    Raises:
        ValueError: If a time cannot be read.

    Example::

        >>> parse_losses("vit=20m,cnn=90s,vit=1h")
        {'vit': [1200.0, 3600.0], 'cnn': [90.0]}
    """
    losses: dict[str, list[float]] = {}
    for part in filter(None, text.split(",")):
        name, _, time = part.rpartition("=")
        try:
            losses.setdefault(name, []).append(parse_duration(time))
        except ValueError as error:
            raise ValueError(f"--lose: {part!r}: {error}") from None
    return losses
