"""Cross-validates models on two tables: many small trainings share one device, and the more urgent table comes first.

Run from the repository's root, after ``pip install -e '.[launch,view,examples]'``: ``python examples/tabular.py``.

1. The tables come with scikit-learn: breast cancer (569 rows, 30 columns) and wine (178 rows, 13 columns). On each, two
   models are trained on five folds, one job for each fold; a job's target is its epochs, and its accuracy on the rows
   held out is watched meanwhile.
2. Two warm processes train them one after another: a job of a second does not wait until torch is imported again.
3. Wine is submitted last and due first. The policy knows the deadlines, so that its jobs come before the others.
4. At the end a table has the accuracy of each model over its folds, and the picture shows them too.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
from itertools import pairwise
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

import lightning.pytorch as pl  # noqa: E402
import torch  # noqa: E402
from matplotlib.figure import Figure  # noqa: E402
from sklearn import datasets  # noqa: E402
from sklearn.model_selection import StratifiedKFold  # noqa: E402
from torch import nn  # noqa: E402
from torch.nn import functional as F  # noqa: E402
from torch.utils.data import DataLoader, TensorDataset  # noqa: E402

from lightning_core.cluster.bundle import Bundle  # noqa: E402
from lightning_core.history.history import History  # noqa: E402
from lightning_core.report.figure_file import save_figure  # noqa: E402
from lightning_core.report.gantt import colour  # noqa: E402
from lightning_core.scheduler.summary import Summary  # noqa: E402
from lightning_core.storage.journals.journal import Journal  # noqa: E402

FOLDS, EPOCHS = 5, 12
# Seconds in which the jobs of each table are due, in the order of their submission.
TABLES = {"breast_cancer": 90, "wine": 45}
# Width of the hidden layer of each model; 0 for none.
MODELS = {"linear": 0, "hidden": 64}


class Table(pl.LightningDataModule):
    """A table of scikit-learn, of which one fold is held out; columns have mean 0 and deviation 1 over the others.

    Args:
        table: Name of the table.
        fold: Number of the fold that is held out.
    """

    def __init__(self, table: str, fold: int) -> None:
        super().__init__()
        self.table, self.fold = table, fold

    def setup(self, stage: str) -> None:
        rows, labels = getattr(datasets, f"load_{self.table}")(return_X_y=True)
        train, held_out = list(StratifiedKFold(FOLDS, shuffle=True, random_state=0).split(rows, labels))[self.fold]
        rows = (rows - rows[train].mean(0)) / rows[train].std(0)
        x, y = torch.tensor(rows, dtype=torch.float32), torch.tensor(labels)
        self.train, self.held_out = TensorDataset(x[train], y[train]), TensorDataset(x[held_out], y[held_out])

    def train_dataloader(self) -> DataLoader[Any]:
        return DataLoader(self.train, 32, shuffle=True)

    def val_dataloader(self) -> DataLoader[Any]:
        return DataLoader(self.held_out, len(self.held_out))


class Classifier(pl.LightningModule):
    """A perceptron with one hidden layer, or none.

    Args:
        width: Width of the hidden layer; 0 for none.
    """

    def __init__(self, width: int) -> None:
        super().__init__()
        layers = [nn.LazyLinear(width), nn.ReLU()] if width else []
        self.network = nn.Sequential(*layers, nn.LazyLinear(3))

    def training_step(self, batch: list[torch.Tensor], index: int) -> torch.Tensor:
        return F.cross_entropy(self.network(batch[0]), batch[1])

    def validation_step(self, batch: list[torch.Tensor], index: int) -> None:
        self.log("accuracy", (self.network(batch[0]).argmax(1) == batch[1]).float().mean())

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.Adam(self.parameters(), 3e-3)


def jobs() -> dict[str, Any]:
    """Return the jobs as in a bundle file."""
    return {
        f"{table}-{model}-{fold}": {
            "seed_everything": fold,
            "model": {"class_path": "examples.tabular.Classifier", "init_args": {"width": width}},
            "data": {"class_path": "examples.tabular.Table", "init_args": {"table": table, "fold": fold}},
            "trainer": {"logger": False, "num_sanity_val_steps": 0},
            "deadline": f"{seconds}s", "target": {"epochs": EPOCHS, "metric": "accuracy", "mode": "max"},
        }
        for table, seconds in TABLES.items() for model, width in MODELS.items() for fold in range(FOLDS)
    }  # fmt: skip


def accuracies(summary: Summary, table: str, model: str) -> list[float]:
    """Return the best accuracy of a model on each fold of a table."""
    named = [job for job in summary.jobs if job.name.startswith(f"{table}-{model}-")]
    return [job.watched.best for job in named if job.watched is not None]


def show(summary: Summary) -> None:
    """Print the accuracies, and when each table was done."""
    for table, due in TABLES.items():
        ends = [job.finished_at - job.submitted_at for job in summary.jobs
                if job.name.startswith(table) and job.finished_at is not None]  # fmt: skip
        print(f"{table}: done after {max(ends):.0f} s, due in {due} s")
        for model in MODELS:
            found = accuracies(summary, table, model)
            print(f"  {model:6} {statistics.mean(found):.1%} ± {statistics.stdev(found):.1%} over {len(found)} folds")
    print(f"{summary.met} of {len(summary.jobs)} trainings in time, {summary.wall / len(summary.jobs):.1f} s each")


def draw(history: History, summary: Summary, path: Path) -> None:
    """Draw which table had the device, and the accuracy of each model on each fold."""
    figure = Figure(figsize=(8, 3.6), layout="constrained")
    above, below = figure.subplots(2, 1, height_ratios=(2, 3))
    for number, (table, due) in enumerate(TABLES.items()):
        for job in (job for job in history.jobs if job.name.startswith(table)):
            levels = [*((held.time, held.share) for held in job.grants), (job.ended or history.last, 0.0)]
            for (begin, share), (end, _) in pairwise(levels):
                above.bar(
                    begin, share, end - begin, align="edge", color=colour(number), edgecolor="white", linewidth=0.7
                )
        above.axvline(due, color="black", linestyle=":", linewidth=2)
        for row, model in enumerate(MODELS):
            found = accuracies(summary, table, model)
            below.plot(found, [2.5 * number + row] * len(found), "o", color=colour(number), alpha=0.6)
            below.plot(statistics.mean(found), 2.5 * number + row, "|k", markersize=18)
    above.set(
        ylabel="share", ylim=(0, 1), xlim=(0, None), xlabel="seconds (one box is one training; dotted: deadlines)"
    )
    names = [f"{table}, {model}" for table in TABLES for model in MODELS]
    below.set_yticks([2.5 * (k // len(MODELS)) + k % len(MODELS) for k in range(len(names))], names)
    below.set(xlabel="accuracy on the rows held out, fold by fold (bar: mean)", ylim=(4, -0.5))
    save_figure(figure, path)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--picture", type=Path, default=Path("tabular.png"), metavar="FILE",
                        help="the picture (default tabular.png)")  # fmt: skip
    arguments = parser.parse_args()
    bundle = Bundle.from_dict({"policy": "edf", "pool": {"resident": 2}, "period": "0.2s", "jobs": jobs()}, ROOT)
    with tempfile.TemporaryDirectory(prefix="lc-") as folder:
        summary = bundle.run(run_dir=Path(folder) / "run")
        show(summary)
        with Journal.open(summary.run_dir / "journal.db", read_only=True) as journal:
            draw(History.read(journal), summary, arguments.picture)
    print(f"device and accuracies: {arguments.picture}")


if __name__ == "__main__":
    main()
