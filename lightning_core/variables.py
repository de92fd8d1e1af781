"""Table of the environment variables of this package, so that a misspelt one is reported rather than ignored."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from lightning_core.core.limits import shown
from lightning_core.core.names import did_you_mean

PREFIX = "LIGHTNING_CORE_"
NETWORK_DISK = f"{PREFIX}NETWORK_DISK"
# Values of POOL, and of the argument of that name: the pool that is found, and none.
AUTO, LOCAL = "auto", "local"
# Beginning of the UUID of an instance of a GPU that is divided (MIG).
MIG = "MIG-"
# Values of a switch that leave it off.
OFF = ("", "0", "no", "off", "false")
# Characters of a value: of a path or a target, of which none is longer.
MAX_VALUE_LENGTH = 4096
# Variables that say something of the job that JOB names.
OF_A_JOB = ("DEADLINE", "TARGET", "WEIGHT", "LIKE", "ON_MISS", "ON_HOLD", "ON_NAN", "ON_REFUSED")
# Contents of each variable, by its name without the prefix. Every variable that is read or set is listed here.
KNOWN = {
    # Read when a Trainer is made (lightning_core.autojoin).
    "JOB": "name of the script's job; if it is not set, the script joins no pool",
    "DEADLINE": "deadline of the job, if it has one",
    "TARGET": "target of the job",
    "WEIGHT": "weight of the job",
    "LIKE": "name or tag of earlier runs with a similar loss curve",
    "ON_MISS": "action when the deadline passes: continue, stop or hold",
    "ON_HOLD": "memory on a GPU while the job is held: keep, offload or suspend",
    "BESIDE": "whether the job may train at the same time as others on its device: never, auto or always",
    "ON_NAN": "action when losses are NaN or infinite: continue or stop",
    "ON_REFUSED": "action while the name of the job is taken: hold, rename or alone",
    # Read by scripts and commands.
    "POOL": "pool to join: auto, local, a folder or host:port; commands also take the address of a page",
    "TOKEN": "token of a user, for a pool that is named by its https:// address, and for `mcp`",
    "HISTORY": "folder in which the runs of scripts are kept and found without a pool",
    "REQUEUE": "whether the script's Slurm job is requeued when its time is up: yes or no",
    "HOME": "folder of this user's pool",
    "NETWORK_DISK": "whether a journal may be on a network disk: yes or no, which is the default",
    "TRUST": "other users, and groups with an @, whose folders are trusted as this user's: 1000,@team",
    # Set for processes that the package starts.
    "HEAD": "for the processes of a pool: the mark by which `down` recognises them",
    "EVENT": "for an on_verdict command: verdict or alert",
    "VERDICT": "for an on_verdict command: the job's new verdict; empty for an alert",
    "REASON": "for an on_verdict command: reason of the verdict or alert",
    "LAUNCHED": "for a script that a pool has started: the file that says so, read by lightning_core.agent",
    "RESUME": "for such a script: the file or folder to resume from, as it was saved; unset if it begins",
    "SCRIPT": "for the processes of such a script: the mark by which they end with its worker",
    "WITHIN": "for processes that a training starts: the training's process, and its job",
    "DISABLE": "1 switches the package off in every Trainer",
    "MICRO_BATCHES": "for a rank of a launched job: micro-batches in a step",
    "NODE": "for a simulated node: the mark by which its provisioner recognises it",
    "NODE_RAY": "for a node that SkyPilot brings, in its file: path of Ray's command",
    "NODE_ADDRESS": "for such a node: address of the pool's Ray",
    "NODE_LABELS": "for such a node: its labels in Ray",
    "NODE_RESOURCES": "for such a node: its resources in Ray, as JSON",
    "NODE_GPUS": "for such a node: the number of its GPUs in Ray",
    "SPOT": "for a provision command: requested spot nodes",
    "POOL_LABEL": "for a provision command: name of the pool, the label of its nodes",
    "ON_DEMAND": "for a provision command: requested on-demand nodes",
    "OFFERS": "for a provision command: requested nodes of each offer, as JSON; empty if they may be anywhere",
}


def is_disabled(environment: Mapping[str, str] = os.environ) -> bool:
    """Return whether the package is switched off in every Trainer.

    Example::

        >>> is_disabled({"LIGHTNING_CORE_DISABLE": "1"}), is_disabled({"LIGHTNING_CORE_DISABLE": "0"}), is_disabled({})
        (True, False, False)
    """
    return environment.get(f"{PREFIX}DISABLE", "").lower() not in OFF


def run_history(environment: Mapping[str, str] = os.environ) -> Path | None:
    """Return the folder in which runs are kept and found without a pool; None for none.

    Example::

        >>> run_history({"LIGHTNING_CORE_HISTORY": "/data/runs"})
        PosixPath('/data/runs')
        >>> run_history({}) is None
        True
    """
    folder = environment.get(f"{PREFIX}HISTORY", "")
    return Path(folder).expanduser() if folder else None


def will_be_requeued(environment: Mapping[str, str] = os.environ) -> bool:
    """Return whether the Slurm job of this process is requeued when its time is up.

    Raises:
        ValueError: If the variable is neither ``yes`` nor ``no``.

    Example::

        >>> will_be_requeued({"LIGHTNING_CORE_REQUEUE": "yes"}), will_be_requeued({})
        (True, False)
    """
    return _yes_or_no("REQUEUE", environment)


def allows_network_disk(environment: Mapping[str, str] = os.environ) -> bool:
    """Return whether a journal may be on a network disk.

    Raises:
        ValueError: If the variable is neither ``yes`` nor ``no``.

    Example::

        >>> allows_network_disk({"LIGHTNING_CORE_NETWORK_DISK": "yes"}), allows_network_disk({})
        (True, False)
    """
    return _yes_or_no("NETWORK_DISK", environment)


def _yes_or_no(name: str, environment: Mapping[str, str]) -> bool:
    text = environment.get(f"{PREFIX}{name}") or "no"
    if text not in ("yes", "no"):
        raise ValueError(f"{PREFIX}{name} must be yes or no, got {shown(text)}")
    return text == "yes"


def terms_of_company(environment: Mapping[str, str] = os.environ) -> str:
    """Return whether the job of this process may train at the same time as others on its device.

    Example::

        >>> terms_of_company({"LIGHTNING_CORE_BESIDE": "never"}), terms_of_company({})
        ('never', 'auto')
    """
    return environment.get(f"{PREFIX}BESIDE") or "auto"


def unknown(environment: Mapping[str, str]) -> list[str]:
    """Describe each variable that has the package's prefix but is not in the table, with the closest name that is.

    Example::

        >>> unknown({"LIGHTNING_CORE_DEADLIN": "2h", "LIGHTNING_CORE_JOB": "a", "HOME": "/"})
        ["LIGHTNING_CORE_DEADLIN is not a variable of lightning_core; did you mean 'LIGHTNING_CORE_DEADLINE'?"]
    """
    names = [PREFIX + name for name in KNOWN]
    found = sorted(name for name in environment if name.startswith(PREFIX) and name not in names)
    return [f"{name} is not a variable of lightning_core{did_you_mean(name, names)}" for name in found]


def visible_gpus(environment: Mapping[str, str] = os.environ) -> list[str] | None:
    """Return the numbers and UUIDs of the GPUs that CUDA lets this process use; None if that is not limited.

    Example::

        >>> visible_gpus({"CUDA_VISIBLE_DEVICES": "1, MIG-7d1f"}), visible_gpus({"CUDA_VISIBLE_DEVICES": "-1"})
        (['1', 'MIG-7d1f'], [])
    """
    given = environment.get("CUDA_VISIBLE_DEVICES")
    return None if given is None else [one for part in given.split(",") if (one := part.strip()) not in ("", "-1")]
