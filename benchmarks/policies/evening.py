"""Play ``examples/evening.yaml`` in the order of its file and in random orders: what comes of first come, first served.

Neither paper compares with it. In the file's order it meets more than the papers' policies do.
"""

from __future__ import annotations

from benchmarks import common, results
from benchmarks.common import Figures, Size
from benchmarks.labels import EVENING
from lightning_core.simulation.recorded_curves import SHIPPED
from lightning_core.simulation.replications import Experiment, print_seeds, sums

BUNDLE = results.ROOT / "examples" / "evening.yaml"
JOBS = 8
SEEDS = {"quick": 20, "default": 40, "full": 200}
# Whether the seeds draw the order of the jobs, by the name of the figures.
ORDERS = {"file": False, "random": True}


def measure(size: Size, policies: tuple[str, ...] = EVENING) -> Figures:
    """Play all seeds in both ways, and print and return the jobs met."""
    figures: Figures = {"seeds": float(SEEDS[size])}
    for order, shuffle in ORDERS.items():
        done = Experiment(BUNDLE, SHIPPED, policies, shuffle=shuffle).replicate(range(SEEDS[size]))
        print(f"\nJobs in {'a random order' if shuffle else 'the order of the file'}")
        print_seeds(done, JOBS)
        figures[f"ceiling_{order}"] = sum(one.ceiling or 0 for one in done) / len(done)
        for name, row in sums(done).items():
            figures[f"met_{order}_{name}"], figures[f"se_{order}_{name}"] = row.met
    return figures


if __name__ == "__main__":
    common.main("policies.evening", (__doc__ or "").splitlines()[0], measure)
