"""Who gets what share? One file a policy (the classic ones together). A new policy is one file and one line here."""

from __future__ import annotations

from collections.abc import Callable

from lightning_core.policies.classic import Edf, Fifo, Fixed, Uniform
from lightning_core.policies.lara import Lara
from lightning_core.protocols import Policy

POLICIES: dict[str, Callable[..., Policy]] = {
    "fifo": Fifo,
    "edf": Edf,
    "uniform": Uniform,
    "fixed": Fixed,
    "lara": Lara,
}

__all__ = ["POLICIES", "Edf", "Fifo", "Fixed", "Lara", "Uniform"]
