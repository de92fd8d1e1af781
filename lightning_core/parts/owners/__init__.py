"""The owners of jobs: fair share among them, and tokens for those without an account on the pool's machine.

A pool whose section has ``owners`` is divided among them by weight, quota, cap and budget, whatever its policy, which
plans the jobs of each as on a pool of its own (``docs/parts/fair-share.md``). The command ``token`` makes tokens, by
which those who speak HTTP with a pool are known to it (``docs/how-to/several-people.md``).
"""

from __future__ import annotations

from lightning_core.core.parts import Part, later

_HERE = "lightning_core.parts.owners"

part = Part(
    commands=later(f"{_HERE}.token_commands", "add_commands"),
    members={"authenticators": {"tokens": later(f"{_HERE}.tokens", "Tokens")}},
    dividers={"owners": later(f"{_HERE}.owners", "Owners")},
    lines={"owners": later(f"{_HERE}.owner_line", "owner_line")},
    reasons={
        "fair_share": "waiting for its turn in its owner's fair share, {0:.3g} of {1:# device}",
        "cap": "waiting for other jobs of its owner, which may have {0:# device} at most",
        "budget": "its owner's budget of {0:,.4g} device-hours is spent: waiting for devices that no other owner can "
        "use; the budget is renewed in {1:t}",
        "budget_ends": "its owner's budget of {0:,.4g} device-hours is spent: waiting for devices that no other owner "
        "can use",
        "borrows": "its owner's budget of {0:,.4g} device-hours is spent: uses devices that no other owner can use",
    },
    figures={"owners": later(f"{_HERE}.owner_line", "figures")},
)
"""What ``lightning_core`` registers as the part ``owners``."""
