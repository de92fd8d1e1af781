"""Fair share among the owners of jobs: what each has had, what each may hold now, and a plan for the jobs of each.

A pool whose section has ``owners`` is divided among them by weight, quota, cap and budget, whatever its policy, which
plans the jobs of each as on a pool of its own (``docs/parts/fair-share.md``).
"""

from __future__ import annotations

from lightning_core.core.parts import Part, later

_HERE = "lightning_core.parts.owners"

part = Part(
    dividers={"owners": later(f"{_HERE}.owners", "Owners")},
    lines={"owners": later(f"{_HERE}.owner_line", "owner_line")},
    figures={"owners": later(f"{_HERE}.owner_line", "figures")},
)
"""What ``lightning_core`` registers as the part ``owners``."""
