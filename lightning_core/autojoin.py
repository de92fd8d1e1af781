"""Automatic joining: every Trainer of a process joins a pool, as its environment says, with its script unchanged.

Lightning asks the entry points of the group ``lightning.pytorch.callbacks_factory`` for callbacks whenever a Trainer is
made, and the package ``pytorch_lightning`` those of ``pytorch_lightning.callbacks_factory``. Ours has one if
``LIGHTNING_CORE_JOB`` is set::

    LIGHTNING_CORE_JOB=resnet LIGHTNING_CORE_DEADLINE=2h LIGHTNING_CORE_TARGET="val_acc>=0.9" python train.py

=============================== ==========================================================================
``LIGHTNING_CORE_JOB``          name of the job; if it is not set, no callback is added
``LIGHTNING_CORE_DEADLINE``     such as ``2h``, ``2 hours``, ``02:30:00`` or ``18:00``
``LIGHTNING_CORE_TARGET``       ``train_loss<=0.35``, ``val_acc>=0.9 for 2 evaluations``, ``2000 batches``
``LIGHTNING_CORE_POOL``         ``auto`` (if unset), ``local``, or where the pool is
``LIGHTNING_CORE_WEIGHT``       a number
``LIGHTNING_CORE_ON_MISS``      ``continue`` (if unset), ``stop`` or ``hold``
``LIGHTNING_CORE_ON_HOLD``      ``keep`` (if unset), ``offload`` or ``suspend``
``LIGHTNING_CORE_BESIDE``       ``auto`` (if unset), ``never`` or ``always``
``LIGHTNING_CORE_ON_NAN``       ``continue`` (if unset) or ``stop``
``LIGHTNING_CORE_ON_REFUSED``   ``hold`` (if unset), ``rename`` or ``alone``: action while the job's name is taken
=============================== ==========================================================================

In a script that a pool has launched, name and target are those of its job in the bundle.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Mapping
from enum import StrEnum
from typing import TYPE_CHECKING, Any, TypeVar

from lightning_core.agent.launched_script import is_part_of_launched, launched_script
from lightning_core.core.jobs import OnHold, OnMiss, OnNan, OnRefused, check_term
from lightning_core.core.limits import check_length
from lightning_core.core.targets import parse_target
from lightning_core.variables import MAX_VALUE_LENGTH, PREFIX, is_disabled, unknown

if TYPE_CHECKING:
    from lightning_core.callbacks import CoreCallback

log = logging.getLogger(__name__)

T = TypeVar("T")

# Variables that say something of the job that LIGHTNING_CORE_JOB names.
_OF_A_JOB = ("DEADLINE", "TARGET", "WEIGHT", "ON_MISS", "ON_HOLD", "ON_NAN", "ON_REFUSED")
# Warnings that this process has logged: each is logged once, however many Trainers it makes.
_logged: set[str] = set()


def callbacks() -> list[CoreCallback]:
    """Return the callback that the environment asks for; empty if it asks for none.

    Raises:
        MisconfigurationException: If a variable is missing or invalid; the message names it and the rule.
    """
    environment = {key: value for key, value in os.environ.items() if key.startswith(PREFIX)}
    if is_disabled(environment):
        return []
    for warning in (*unknown(environment), *_without_job(environment)):
        if warning not in _logged:
            _logged.add(warning)
            log.warning("%s", warning)
    if not environment.get(f"{PREFIX}JOB"):
        return []
    if is_part_of_launched(environment):
        return _of_launched(environment)
    # A process that makes a Trainer has imported it.
    from lightning.fabric.utilities.exceptions import MisconfigurationException  # noqa: TID251

    from lightning_core.callbacks import CoreCallback

    try:
        return [CoreCallback(**read(environment))]
    except ValueError as error:
        raise MisconfigurationException(str(error)) from None


def _of_launched(environment: Mapping[str, str]) -> list[CoreCallback]:
    """Return the callback of a script that a pool has launched; empty in a process that the script has started."""
    script = launched_script(environment)
    if script is None:
        return []
    from lightning_core.callbacks import CoreCallback

    return [CoreCallback(script.job, target=script.target)]


def _without_job(environment: Mapping[str, str]) -> list[str]:
    """Return a warning if the environment says something of a job, and names none.

    Example::

        >>> _without_job({"LIGHTNING_CORE_TARGET": "loss<=0.1", "LIGHTNING_CORE_POOL": "local"})  # doctest: +ELLIPSIS
        ['LIGHTNING_CORE_TARGET is set and LIGHTNING_CORE_JOB is not: ...; set LIGHTNING_CORE_JOB to a name of the job']
    """
    names = [PREFIX + name for name in _OF_A_JOB if environment.get(PREFIX + name)]
    if not names or environment.get(f"{PREFIX}JOB"):
        return []
    are = "is" if len(names) == 1 else "are"
    rule = f"training continues without target and deadline; set {PREFIX}JOB to a name of the job"
    return [f"{', '.join(names)} {are} set and {PREFIX}JOB is not: {rule}"]


def read(environment: Mapping[str, str]) -> dict[str, Any]:
    """Return the arguments of the callback.

    Raises:
        ValueError: If a variable is missing or invalid; the message names it and the rule.

    Example::

        >>> read({"LIGHTNING_CORE_JOB": "a", "LIGHTNING_CORE_DEADLINE": "2h", "LIGHTNING_CORE_TARGET": "2000 batches"})
        {'job': 'a', 'deadline': '2h', 'target': BatchTarget(batches=2000)}
    """
    from lightning_core.core.durations import parse_when

    arguments: dict[str, Any] = {"job": environment[f"{PREFIX}JOB"]}
    if environment.get(f"{PREFIX}DEADLINE"):
        arguments["deadline"] = _value(environment, "DEADLINE", lambda text: parse_when(text) and text)
    arguments["target"] = _value(environment, "TARGET", parse_target)
    for name, parse in (
        ("POOL", str), ("WEIGHT", _weight), ("ON_MISS", _on_miss), ("ON_HOLD", _on_hold), ("ON_NAN", _on_nan),
        ("ON_REFUSED", _on_refused),
    ):  # fmt: skip
        if environment.get(PREFIX + name):
            arguments[name.lower()] = _value(environment, name, parse)
    return arguments


def _value(environment: Mapping[str, str], name: str, parse: Callable[[str], T]) -> T:
    text = environment.get(PREFIX + name)
    if not text:
        raise ValueError(f"{PREFIX}{name} must be set if {PREFIX}JOB is")
    check_length(f"{PREFIX}{name}", text, MAX_VALUE_LENGTH)
    try:
        return parse(text)
    except ValueError as error:
        raise ValueError(f"{PREFIX}{name}: {error}") from None


def _weight(text: str) -> float:
    try:
        weight = float(text)
    except ValueError:
        weight = -1.0
    if not 0 < weight < float("inf"):
        raise ValueError(f"weight must be positive and finite, got {text!r}")
    check_term("weight", weight)
    return weight


def _on_nan(text: str) -> str:
    if text == OnNan.RESTART:
        raise ValueError("on_nan must be continue or stop in a script, got 'restart': only a launched job can go back")
    return _one_of(OnNan, "on_nan", text)


def _on_miss(text: str) -> str:
    return _one_of(OnMiss, "on_miss", text)


def _on_hold(text: str) -> str:
    return _one_of(OnHold, "on_hold", text)


def _on_refused(text: str) -> str:
    return _one_of(OnRefused, "on_refused", text)


def _one_of(kind: type[StrEnum], name: str, text: str) -> str:
    if text not in tuple(kind):
        raise ValueError(f"{name} must be one of {', '.join(kind)}, got {text!r}")
    return text
