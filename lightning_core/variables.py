"""The environment variables of this package in one table, so that a misspelt one is found rather than ignored."""

from __future__ import annotations

from collections.abc import Mapping

from lightning_core.core.names import did_you_mean

PREFIX = "LIGHTNING_CORE_"
# What each holds, without the prefix. A variable that is read or set anywhere has its line here.
KNOWN = {
    # Read when a Trainer is made (lightning_core.autojoin).
    "JOB": "name of the job that a script becomes; without it, nothing happens",
    "DEADLINE": "time for the job",
    "TARGET": "when the job counts as met",
    "WEIGHT": "how many jobs of weight 1 it counts for",
    "ON_MISS": "what becomes of it when its deadline passes",
    "ON_NAN": "what becomes of it when its losses are NaN or infinite: continue or stop",
    "ON_REFUSED": "what a script does if the pool refuses its job: hold, rename or alone",
    # Read by scripts and commands.
    "POOL": "which pool is meant: auto, local, a folder or host:port",
    "HOME": "folder in which the pool of this account is looked for",
    # Set for the processes that are started here.
    "EVENT": "of an on_verdict command: verdict, or alert",
    "VERDICT": "of an on_verdict command: the job's new verdict; empty of an alert",
    "REASON": "of an on_verdict command: why",
    "MICRO_BATCHES": "of a launched rank: micro-batches in a step",
    "SPOT": "of a provision command: spot nodes wanted",
    "ON_DEMAND": "of a provision command: on-demand nodes wanted",
}


def unknown(environment: Mapping[str, str]) -> list[str]:
    """Describe each variable that has our prefix and is not known, with the closest name that is.

    Example::

        >>> unknown({"LIGHTNING_CORE_DEADLIN": "2h", "LIGHTNING_CORE_JOB": "a", "HOME": "/"})
        ["LIGHTNING_CORE_DEADLIN is no variable of lightning_core; did you mean 'LIGHTNING_CORE_DEADLINE'?"]
    """
    names = [PREFIX + name for name in KNOWN]
    strange = sorted(name for name in environment if name.startswith(PREFIX) and name not in names)
    return [f"{name} is no variable of lightning_core{did_you_mean(name, names)}" for name in strange]
