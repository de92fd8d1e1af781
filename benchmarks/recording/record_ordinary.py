"""Record small trainings of many kinds for the benchmark of ordinary trainings.

    python -m benchmarks.recording.record_ordinary --out benchmarks/curves/ordinary.json.xz

Each is trained once from its seed on one thread, 1 to 20 s each. What is kept is what the callback would report: the
cells of the loss, or each validation, and the learning rates.
"""

from __future__ import annotations

import argparse
import json
import lzma
import time
import warnings
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch

from benchmarks.recording import ordinary_tasks as tasks
from benchmarks.recording.ordinary_tasks import Learner
from lightning_core.agent.reporting.loss_meter import LossMeter
from lightning_core.core.events import Cell
from lightning_core.core.reported import LearningRates, fewer

Make = Callable[[], Learner]


class Run(NamedTuple):
    """A training to record.

    Attributes:
        task: Name of its task: all runs of a task are in one half.
        make: Makes the learner.
        optimizer: ``adam``, ``adamw``, ``sgd`` or ``momentum`` (0.9).
        rate: Highest learning rate.
        batches: Length of the training.
        metric: What its target is about: ``loss``, or a metric of a validation.
        schedule: ``constant``, ``cosine``, ``onecycle``, ``step`` or ``warmup``.
        decay: Weight decay.
    """

    task: str
    make: Make
    optimizer: str
    rate: float
    batches: int
    metric: str = "loss"
    schedule: str = "constant"
    decay: float = 0.0


def _runs() -> dict[str, Run]:
    """Return all trainings by name."""
    digits, table, sums, chain = tasks.digits, tasks.table, tasks.sums, tasks.chain
    found = [
        ("digits linear", partial(digits, "linear"), "sgd", 0.1, 4000, "loss", "constant", 0.0),
        ("digits linear adam", partial(digits, "linear"), "adam", 2e-3, 3000, "val_loss", "constant", 0.0),
        ("digits mlp", partial(digits, "mlp"), "adam", 1e-3, 3000, "loss", "constant", 0.0),
        ("digits mlp val", partial(digits, "mlp"), "sgd", 0.05, 5000, "val_acc", "constant", 0.0),
        ("digits mlp dropout", partial(digits, "dropout"), "adamw", 1e-3, 4000, "loss", "cosine", 0.01),
        ("digits cnn", partial(digits, "cnn"), "adam", 1e-3, 2500, "loss", "constant", 0.0),
        ("digits cnn val", partial(digits, "cnn"), "momentum", 0.01, 2500, "val_loss", "step", 0.0),
        ("digits gru", partial(digits, "gru"), "adam", 2e-3, 3000, "loss", "onecycle", 0.0),
        ("digits transformer", partial(digits, "transformer"), "adamw", 1e-3, 3000, "val_acc", "warmup", 0.01),
        ("wine", partial(table, "wine", 16), "sgd", 0.05, 3000, "loss", "constant", 0.0),
        ("wine val", partial(table, "wine", 16), "adam", 1e-3, 2000, "val_loss", "constant", 0.0),
        ("cancer", partial(table, "breast_cancer", 32), "momentum", 0.003, 3000, "loss", "constant", 0.0),
        ("cancer val", partial(table, "breast_cancer", 32), "adamw", 1e-3, 2500, "val_loss", "cosine", 0.01),
        ("diabetes", partial(table, "diabetes", 32), "adam", 1e-3, 3000, "loss", "constant", 0.0),
        ("diabetes val", partial(table, "diabetes", 32), "sgd", 0.01, 3000, "val_loss", "constant", 0.0),
        ("flipped", partial(tasks.flipped, 0.1, 64), "adam", 1e-3, 4500, "val_acc", "constant", 0.0),
        ("flipped loss", partial(tasks.flipped, 0.1, 64), "momentum", 0.01, 4500, "loss", "constant", 0.0),
        ("flipped cosine", partial(tasks.flipped, 0.3, 128), "adamw", 2e-3, 4500, "val_loss", "cosine", 0.01),
        ("flipped never", partial(tasks.flipped, 0.3, 64), "adam", 1e-3, 4500, "val_acc", "onecycle", 0.0),
        ("sums", partial(sums, 64), "adam", 1e-3, 6000, "loss", "constant", 0.0),
        ("sums sgd", partial(sums, 64), "sgd", 0.1, 6000, "loss", "constant", 0.0),
        ("sums wide", partial(sums, 128, 128), "adam", 1e-3, 4000, "val_loss", "cosine", 0.0),
        ("sums momentum", partial(sums, 64), "momentum", 0.02, 5000, "loss", "step", 0.0),
        ("sums noisy", partial(sums, 64, noise=0.3), "adam", 2e-3, 5000, "loss", "constant", 0.0),
        ("sums noisy onecycle", partial(sums, 64, noise=0.3), "adam", 5e-3, 4000, "val_loss", "onecycle", 0.0),
        ("friedman", partial(tasks.friedman, 64), "adam", 1e-3, 5000, "loss", "constant", 0.0),
        ("friedman val", partial(tasks.friedman, 64, 64), "adamw", 1e-3, 5000, "val_loss", "warmup", 0.01),
        ("friedman sgd", partial(tasks.friedman, 64), "sgd", 0.003, 6000, "loss", "constant", 0.0),
        ("chain table", partial(chain, "table"), "adam", 0.02, 2500, "loss", "onecycle", 0.0),
        ("chain table constant", partial(chain, "table"), "adam", 0.01, 2500, "loss", "constant", 0.0),
        ("chain table sgd", partial(chain, "table"), "sgd", 2.0, 4000, "val_loss", "constant", 0.0),
        ("chain gru", partial(chain, "gru"), "adam", 3e-3, 2500, "loss", "cosine", 0.0),
        ("chain transformer", partial(chain, "transformer"), "adamw", 2e-3, 2500, "loss", "warmup", 0.01),
        ("letters lstm", partial(tasks.letters, "lstm"), "adam", 3e-3, 2500, "loss", "constant", 0.0),
        ("letters lstm sgd", partial(tasks.letters, "lstm"), "momentum", 0.3, 2500, "val_loss", "constant", 0.0),
        ("letters transformer", partial(tasks.letters, "transformer"), "adamw", 2e-3, 2000, "loss", "onecycle", 0.01),
        ("letters val", partial(tasks.letters, "transformer"), "adam", 1e-3, 2000, "val_loss", "cosine", 0.0),
        ("lora", partial(tasks.lora, 4), "adam", 3e-3, 2500, "loss", "constant", 0.0),
        ("lora val", partial(tasks.lora, 8), "adamw", 2e-3, 2500, "val_loss", "cosine", 0.0),
        ("lora sgd", partial(tasks.lora, 8), "momentum", 0.1, 2500, "loss", "warmup", 0.0),
        ("parity", partial(tasks.parity, 2, 64), "adam", 1e-3, 4000, "loss", "constant", 0.0),
        ("parity val", partial(tasks.parity, 2, 128), "sgd", 0.1, 6000, "val_acc", "constant", 0.0),
        ("parity three", partial(tasks.parity, 3, 128), "adamw", 1e-3, 6000, "loss", "constant", 0.01),
        ("modular", partial(tasks.modular, 31, 32), "adamw", 3e-3, 6000, "val_acc", "constant", 1.0),
        ("modular loss", partial(tasks.modular, 31, 32), "adam", 1e-3, 4000, "loss", "constant", 0.0),
        ("vae", partial(tasks.vae, 64, 4), "adam", 1e-3, 4000, "loss", "constant", 0.0),
        ("vae val", partial(tasks.vae, 64, 8), "adam", 2e-3, 4000, "val_loss", "cosine", 0.0),
        ("vae momentum", partial(tasks.vae, 32, 4), "momentum", 3e-4, 5000, "loss", "constant", 0.0),
        ("autoencoder", partial(tasks.autoencoder, 64, 8), "adam", 1e-3, 4000, "loss", "constant", 0.0),
        ("autoencoder val", partial(tasks.autoencoder, 64, 8), "adamw", 2e-3, 4000, "val_loss", "onecycle", 0.01),
        ("autoencoder sgd", partial(tasks.autoencoder, 64, 16), "momentum", 0.3, 5000, "loss", "step", 0.0),
        ("critic", partial(tasks.critic, 1e-3), "adam", 1e-3, 3000, "loss", "constant", 0.0),
        ("critic fast", partial(tasks.critic, 2e-4), "adam", 2e-3, 3000, "loss", "constant", 0.0),
        ("diffusion", partial(tasks.diffusion, 64), "adam", 1e-3, 5000, "loss", "constant", 0.0),
        ("diffusion val", partial(tasks.diffusion, 128), "adamw", 2e-3, 5000, "val_loss", "cosine", 0.0),
        ("diffusion sgd", partial(tasks.diffusion, 64), "momentum", 0.02, 5000, "loss", "warmup", 0.0),
        ("ratings", partial(tasks.ratings, 4), "adam", 3e-3, 6000, "loss", "constant", 0.0),
        ("ratings val", partial(tasks.ratings, 4), "adam", 1e-2, 5000, "val_loss", "step", 0.0),
        ("ratings sgd", partial(tasks.ratings, 4), "sgd", 1.0, 6000, "loss", "constant", 0.0),
        ("pole", partial(tasks.pole, 32), "adam", 1e-2, 400, "reward", "constant", 0.0),
        ("pole slow", partial(tasks.pole, 32), "adam", 3e-3, 500, "reward", "constant", 0.0),
        ("pole sgd", partial(tasks.pole, 64), "momentum", 0.1, 400, "reward", "constant", 0.0),
        ("heat", partial(tasks.heat, 32), "adam", 1e-3, 4000, "loss", "constant", 0.0),
        ("heat onecycle", partial(tasks.heat, 32), "adam", 5e-3, 4000, "loss", "onecycle", 0.0),
    ]  # fmt: skip
    return {str(name): Run(str(name).split()[0], *more) for name, *more in found}  # type: ignore[arg-type]


RUNS = _runs()


def record(run: Run, seed: int) -> dict[str, Any]:
    """Train, and return the cells, the learning rates if they change, the seconds per batch and the floor."""
    torch.manual_seed(seed)
    learner = run.make()
    parameters = list(learner.parameters)
    optimizer = _optimizer(run, parameters)
    scheduler = _scheduler(run, optimizer)
    cells: list[Cell] = []
    meter = LossMeter(cells.append)
    rates: list[tuple[int, float]] = []
    began = time.perf_counter()
    for batch in range(1, run.batches + 1):
        rates.append((batch, optimizer.param_groups[0]["lr"]))
        optimizer.zero_grad()
        loss = learner.step()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        learner.after()
        if scheduler is not None:
            scheduler.step()
        if run.metric == "loss":
            meter.add(loss.item(), batch)
        elif learner.evaluate is not None and batch % learner.every == 0:
            with torch.set_grad_enabled(False):
                meter.add_evaluation(learner.evaluate()[run.metric], batch)
    seconds = (time.perf_counter() - began) / run.batches
    grows = run.metric in ("val_acc", "reward")
    kept = None if scheduler is None else LearningRates.through(fewer(rates)[0])
    return {
        "metric": run.metric,
        "best": {"val_acc": 1.0, "reward": 200.0}.get(run.metric) if grows else None,
        "batches": [cell.batches for cell in cells],
        "values": [float(f"{cell.value:.4g}") for cell in cells],
        "rates": None if kept is None else [list(kept.batches), [float(f"{rate:.4g}") for rate in kept.rates]],
        "seconds": float(f"{seconds:.3g}"),
        "length": run.batches,
        "floor": learner.floors.get(run.metric),
    }


def _optimizer(run: Run, parameters: Sequence[torch.nn.Parameter]) -> torch.optim.Optimizer:
    if run.optimizer in ("adam", "adamw"):
        kind = torch.optim.AdamW if run.optimizer == "adamw" else torch.optim.Adam
        return kind(parameters, run.rate, weight_decay=run.decay)
    return torch.optim.SGD(parameters, run.rate, momentum=0.9 if run.optimizer == "momentum" else 0.0)


def _scheduler(run: Run, optimizer: torch.optim.Optimizer) -> torch.optim.lr_scheduler.LRScheduler | None:
    course, length = torch.optim.lr_scheduler, run.batches
    if run.schedule == "cosine":
        return course.CosineAnnealingLR(optimizer, length)
    if run.schedule == "onecycle":
        return course.OneCycleLR(optimizer, run.rate, total_steps=length + 1, cycle_momentum=False)
    if run.schedule == "step":
        return course.MultiStepLR(optimizer, [length // 2, length * 3 // 4])
    if run.schedule == "warmup":
        return course.LambdaLR(optimizer, lambda batch: min((batch + 1) / (0.1 * length), 1.0))
    return None


def main(arguments: Sequence[str] | None = None) -> None:
    """Record the trainings that the command line names."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.recording.record_ordinary",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--out", type=Path, required=True, metavar="FILE", help="file to write or to add to")
    parser.add_argument("--only", nargs="+", metavar="NAME", help="trainings to record (default: all)")
    parser.add_argument("--seed", type=int, default=1, metavar="N", help="seed of each (default: %(default)s)")
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    warnings.filterwarnings("ignore")
    if unknown := [name for name in options.only or () if name not in RUNS]:
        parser.error(f"no training is called {unknown[0]!r}; there are {', '.join(RUNS)}")
    found = {}
    if options.out.exists():
        with lzma.open(options.out) as opened:
            found = json.load(opened)
    for name in options.only or RUNS:
        found[name] = record(RUNS[name], options.seed)
        values = found[name]["values"]
        print(
            f"{name}: {len(values)} values, {values[0]} to {values[-1]}, {1e3 * found[name]['seconds']:.2g} ms a batch",
            flush=True,
        )
    with lzma.open(options.out, "wt", preset=9) as opened:
        json.dump({name: found[name] for name in sorted(found)}, opened, separators=(",", ":"))


if __name__ == "__main__":
    main()
