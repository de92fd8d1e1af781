"""What a training may be like, and rows of it in which each pair of values that go together is there at least once."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from itertools import combinations

Row = Mapping[str, str]

FACTORS: dict[str, tuple[str, ...]] = {
    "step": ("plain", "accumulated", "manual", "two optimizers", "lbfgs", "none"),
    "beside": (
        "nothing", "swa", "averaging", "pruning", "finetuning", "lr finder", "batch-size finder", "accumulation",
        "early stopping",
    ),
    "validation": ("epoch", "none", "second epoch", "steps", "fraction", "across epochs", "time"),
    "limit": ("epochs", "steps", "least", "batches", "time"),
    "data": ("sized", "endless", "reloaded", "combined"),
    "disturbed": ("nothing", "hold", "signal in training", "signal in validation", "signal in saving"),
    "target": ("validation metric", "loss", "epoch metric", "late metric", "batches"),
    "ranks": ("one", "ddp", "forked"),
    "where": ("alone", "pool", "launched"),
    "resumed": ("no", "with", "without", "other class"),
    "workers": ("none", "forked", "persistent"),
    "precision": ("32-true", "bf16-mixed", "64-true"),
    "loggers": ("csv", "none", "two"),
    "profiler": ("none", "simple", "advanced"),
    "keep_best": ("no", "yes"),
}  # fmt: skip
# Values that take long: factor, value, the value that it replaces, and the maximum number of rows.
SLOW = (
    ("ranks", "spawned", "forked", 40),
    ("workers", "spawned", "forked", 40),
    ("precision", "compiled", "32-true", 8),
)
ORDINARY: Row = {name: values[0] for name, values in FACTORS.items()}
SIGNALS = ("signal in training", "signal in validation", "signal in saving")
# Values that do not go together, and why.
APART: tuple[tuple[dict[str, tuple[str, ...]], str], ...] = (
    ({"beside": ("swa",), "step": ("manual", "two optimizers", "lbfgs")}, "SWA skips one optimizer's backward"),
    ({"beside": ("swa", "lr finder"), "data": ("endless",)}, "they need to know the length of an epoch"),
    ({"beside": ("swa",), "limit": ("time",)}, "SWA needs to know its epochs"),
    ({"beside": ("swa",), "resumed": ("with", "without", "other class")}, "Lightning forgets its schedulers"),
    ({"beside": ("lr finder",), "step": ("manual", "two optimizers")}, "the finder steps one optimizer"),
    ({"beside": ("lr finder", "batch-size finder"), "ranks": ("ddp", "forked")}, "Lightning's finders are for one"),
    ({"beside": ("lr finder", "batch-size finder"), "resumed": ("with", "without", "other class")}, "fresh fits only"),
    ({"beside": ("batch-size finder",), "data": ("endless", "combined", "reloaded")}, "it changes a loader"),
    ({"beside": ("accumulation",), "step": ("accumulated", "manual", "two optimizers", "lbfgs")}, "Lightning refuses"),
    ({"beside": ("finetuning",), "step": ("two optimizers", "lbfgs")}, "they take all parameters at once"),
    ({"beside": ("early stopping",), "validation": ("none", "time")}, "it needs the metric at each epoch's end"),
    ({"beside": ("early stopping",), "limit": ("batches",), "validation": ("steps", "across epochs")}, "likewise"),
    ({"step": ("lbfgs",), "precision": ("bf16-mixed",)}, "Lightning refuses"),
    ({"step": ("none",), "ranks": ("ddp", "forked")}, "Lightning refuses"),
    ({"validation": ("fraction",), "data": ("endless",)}, "a fraction of no length"),
    ({"beside": ("pruning",), "precision": ("64-true",)}, "it prunes in single precision"),
    ({"disturbed": SIGNALS, "ranks": ("ddp", "forked")}, "Lightning's handler communicates wherever it comes"),
    ({"validation": ("none",), "disturbed": ("signal in validation",)}, "there is none"),
    ({"validation": ("none",), "target": ("validation metric",)}, "there is none"),
    ({"validation": ("time",), "ranks": ("ddp", "forked")}, "each rank validates by its own clock"),
    ({"where": ("launched",), "ranks": ("forked",)}, "the pool starts the ranks"),
    ({"where": ("launched",), "beside": ("lr finder", "batch-size finder")}, "for scripts"),
    ({"data": ("endless",), "workers": ("forked", "persistent")}, "each worker would repeat it"),
)


def goes_together(row: Row) -> bool:
    """Return whether values can be those of one training; some factors may be missing."""
    return not any(all(row.get(name) in values for name, values in apart.items()) for apart, _ in APART)


def covering_rows(strength: int, seed: int = 0) -> list[dict[str, str]]:
    """Return rows in which each combination of some values that go together is there at least once.

    Greedy: each row begins with a combination that is missing, and takes the values that add most of those missing.

    Args:
        strength: Number of values in a combination: 2 for pairs.
        seed: Seed of the order in which factors are filled in.
    """
    draw = random.Random(seed)
    missing = {frozenset(values) for values in combinations(_values(), strength) if _is_row(values)}
    waiting, rows = sorted(missing, key=sorted), []
    while missing:
        while waiting[-1] not in missing:
            waiting.pop()
        row = dict(waiting[-1])
        for name in draw.sample(list(FACTORS), len(FACTORS)):
            if name not in row:
                fitting = [value for value in FACTORS[name] if goes_together({**row, name: value})]
                others = [frozenset(some) for some in combinations(row.items(), strength - 1)]
                gains = {value: sum(some | {(name, value)} in missing for some in others) for value in fitting}
                row[name] = max(fitting, key=gains.__getitem__)
        missing -= {frozenset(some) for some in combinations(row.items(), strength)}
        rows.append({name: row[name] for name in FACTORS})
    return rows


def night_rows() -> list[dict[str, str]]:
    """Return rows with the values that take long."""
    rows = covering_rows(2)
    return [
        {**row, name: value}
        for name, value, like, most in SLOW
        # What holds a training in these tests cannot be sent to a process that is spawned.
        for row in [row for row in rows if row[name] == like and (value, row["disturbed"]) != ("spawned", "hold")][
            :most
        ]
    ]


def _values() -> list[tuple[str, str]]:
    return [(name, value) for name, values in FACTORS.items() for value in values]


def _is_row(values: Sequence[tuple[str, str]]) -> bool:
    return len(dict(values)) == len(values) and goes_together(dict(values))


def name_of(row: Row) -> str:
    """Return the values of a row that are not the ordinary ones, as the name of a test."""
    return ", ".join(value for name, value in row.items() if value != ORDINARY[name]) or "ordinary"
