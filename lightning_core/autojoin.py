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
``LIGHTNING_CORE_LIKE``         name or tag of earlier runs with a similar loss curve
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
from collections.abc import Mapping
from typing import TYPE_CHECKING

from lightning_core.agent.launched_script import is_part_of_launched, launched_script
from lightning_core.variables import OF_A_JOB, PREFIX, is_disabled, unknown

if TYPE_CHECKING:
    from lightning_core.callbacks import CoreCallback
    from lightning_core.integrations.fabric import CoreFabricCallback

log = logging.getLogger(__name__)

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

    from lightning_core.agent.environment import read
    from lightning_core.callbacks import CoreCallback

    try:
        return [CoreCallback(**read(environment))]
    except ValueError as error:
        raise MisconfigurationException(str(error)) from None


def fabric_callbacks() -> list[CoreFabricCallback]:
    """Return the callback that the environment asks for, for a Fabric; empty if it asks for none.

    Raises:
        MisconfigurationException: If a variable is missing or invalid; the message names it and the rule.
    """
    environment = {key: value for key, value in os.environ.items() if key.startswith(PREFIX)}
    if is_disabled(environment) or not environment.get(f"{PREFIX}JOB"):
        return []
    if is_part_of_launched(environment) and launched_script(environment) is None:
        return []  # a process that the script of a job has started
    from lightning.fabric.utilities.exceptions import MisconfigurationException  # noqa: TID251

    from lightning_core.agent.environment import read
    from lightning_core.integrations.fabric import CoreFabricCallback

    try:
        return [CoreFabricCallback(**read(environment))]
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
    names = [PREFIX + name for name in OF_A_JOB if environment.get(PREFIX + name)]
    if not names or environment.get(f"{PREFIX}JOB"):
        return []
    are = "is" if len(names) == 1 else "are"
    rule = f"training continues without target and deadline; set {PREFIX}JOB to a name of the job"
    return [f"{', '.join(names)} {are} set and {PREFIX}JOB is not: {rule}"]
