"""Shows the ledger of a market: as a table, a picture, and a file for programs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lightning_core.history.market_ledger import MarketLedger
from lightning_core.storage.atomic_files import write_whole

if TYPE_CHECKING:  # it needs extras that a simulation does without
    from lightning_core.bundle.bundle_file import BundleSpec

FILE = "ledger.json"


def draw(ledger: MarketLedger, bundle: BundleSpec, seconds: float, path: Path) -> None:
    """Draw the intervals of a run that has ended.

    Args:
        ledger: Ledger of the run.
        bundle: Its jobs.
        seconds: Seconds of an interval.
        path: File to write; its suffix is the format.
    """
    from lightning_core.report.markets.market_plots import IntervalSeries, draw_intervals

    jobs = [spec.job for spec in bundle.jobs]
    works = [job.target.work for job in jobs]
    # What it takes to reach a loss is known in the end.
    work = sum(row.batches for row in ledger.rows) if None in works else sum(filter(None, works))
    done, progress = 0, list[float]()
    for row in ledger.rows:
        done += row.batches
        progress.append(done / max(work, 1))
    names = ("available", "spot", "on_demand", "failures")
    columns = {name: [getattr(row, name) for row in ledger.rows] for name in names}
    columns["numbers"] = [row.number for row in ledger.rows]
    deadlines = [job.deadline for job in jobs if not job.is_best_effort]
    deadline = max(deadlines, default=seconds * len(ledger.rows)) / seconds
    references = ledger.references
    title = f"paid {ledger.cost:.3g}"
    if references is not None:
        title += f"; on-demand only {references[0]:.3g}, offline optimum {references[1]:.3g}"
    max_nodes = sum(job.max_devices for job in jobs)
    draw_intervals(IntervalSeries(progress=progress, max_nodes=max_nodes, deadline=deadline, **columns), path, title)


def print_ledger(ledger: MarketLedger) -> None:
    """Print the intervals and what they have cost."""
    from lightning_core.view.tables import print_table

    header = ["interval", "price", "available", "spot", "on-demand", "surplus", "used", "cost", "batches",
              "incarnations", "failures", "lost"]  # fmt: skip
    rows = [[f"{value:.4g}" if isinstance(value, float) else str(value) for value in row] for row in ledger.rows]
    print_table(header, rows, ledger.words)


def ledger_to_dict(ledger: MarketLedger) -> dict[str, Any]:
    """Return the ledger as JSON values."""
    on_demand, optimum = ledger.references or (None, None)
    intervals = [row._asdict() for row in ledger.rows]
    return {"intervals": intervals, "cost": ledger.cost, "on_demand_cost": on_demand, "optimum": optimum}


def write_ledger(ledger: MarketLedger, run_dir: Path) -> None:
    """Write the ledger of a run, for programs: the journal has it as well."""
    write_whole(run_dir / FILE, json.dumps(ledger_to_dict(ledger), indent=2, allow_nan=False) + "\n")
