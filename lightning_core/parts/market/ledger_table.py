"""The ledger of a market: a table, a picture, and a file for programs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from lightning_core.parts.market.market_ledger import MarketLedger
from lightning_core.storage.atomic_files import write_whole

FILE = "ledger.json"


def draw(ledger: MarketLedger, path: Path) -> None:
    """Draw what each interval held.

    Args:
        ledger: Ledger with at least one interval.
        path: File to write; its suffix is the format.
    """
    from lightning_core.parts.market.market_plots import IntervalSeries, draw_intervals

    all_batches, done, progress = sum(row.batches for row in ledger.rows), 0, list[float]()
    for row in ledger.rows:
        done += row.batches
        progress.append(done / max(all_batches, 1))
    names = ("available", "spot", "on_demand", "failures")
    columns = {name: [getattr(row, name) for row in ledger.rows] for name in names}
    numbers = [row.number for row in ledger.rows]
    most = max(row.spot + row.on_demand for row in ledger.rows)
    title = f"paid {ledger.cost:.3g}"
    if ledger.references is not None:
        title += f"; on-demand only {ledger.references[0]:.3g}, offline optimum {ledger.references[1]:.3g}"
    series = IntervalSeries(progress=progress, max_nodes=most, deadline=numbers[-1] + 1, numbers=numbers, **columns)
    draw_intervals(series, path, title)


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
