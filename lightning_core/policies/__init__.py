"""Policies: which job gets what share. One file each (the classic ones together); a new one is listed here."""

from __future__ import annotations

import inspect

from lightning_core.core.protocols import Policy
from lightning_core.core.specs import Family
from lightning_core.policies.classic import Edf, Fifo, Fixed, Uniform
from lightning_core.policies.decor import Decor
from lightning_core.policies.greedy import EasiestFirst, LeastResourcesFirst
from lightning_core.policies.guarded_edf import GuardedEdf
from lightning_core.policies.index_edf import IndexEdf
from lightning_core.policies.laira import Laira
from lightning_core.policies.lara import Lara
from lightning_core.policies.round_robin import RoundRobin
from lightning_core.policies.successive_halving import SuccessiveHalving
from lightning_core.policies.triage import Triage

POLICIES: Family[Policy] = Family("policy", {
    "fifo": Fifo,
    "edf": Edf,
    "uniform": Uniform,
    "fixed": Fixed,
    "rr": RoundRobin,
    "lrf": LeastResourcesFirst,
    "etf": EasiestFirst,
    "successive_halving": SuccessiveHalving,
    "lara": Lara,
    "laira": Laira,
    "guarded_edf": GuardedEdf,
    "index_edf": IndexEdf,
    "triage": Triage,
    "decor": Decor,
}, outside="policies", methods=("plan",))  # fmt: skip


def summaries() -> dict[str, str]:
    """Return one line about each policy, the first of its documentation.

    Example::

        >>> summaries()["fifo"]
        'First come, first served: each job keeps its devices until it ends.'
    """
    return {name: (inspect.getdoc(policy) or "").partition("\n")[0] for name, policy in POLICIES.items()}


__all__ = [
    "POLICIES",
    "Decor",
    "EasiestFirst",
    "Edf",
    "Fifo",
    "Fixed",
    "GuardedEdf",
    "IndexEdf",
    "Laira",
    "Lara",
    "LeastResourcesFirst",
    "RoundRobin",
    "SuccessiveHalving",
    "Triage",
    "Uniform",
    "summaries",
]
