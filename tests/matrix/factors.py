"""What a training may be like, and rows of it in which each pair of values that go together is there at least once."""

from __future__ import annotations

import random
from collections.abc import Mapping
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


def pairwise_rows(seed: int = 0) -> list[dict[str, str]]:
    """Return rows in which each pair of values that go together is there at least once.

    Greedy: each row begins with a pair that is missing, and takes the values that add most pairs of those missing.
    """
    draw = random.Random(seed)
    missing = {frozenset((one, other)) for one, other in combinations(_values(), 2) if _is_pair(one, other)}
    rows = []
    while missing:
        row = dict(max(missing, key=sorted))
        for name in draw.sample(list(FACTORS), len(FACTORS)):
            fitting = [value for value in FACTORS[name] if name in row or goes_together({**row, name: value})]
            gains = {value: sum(frozenset(((name, value), one)) in missing for one in row.items()) for value in fitting}
            row.setdefault(name, max(fitting, key=gains.__getitem__))
        missing -= {frozenset(pair) for pair in combinations(row.items(), 2)}
        rows.append({name: row[name] for name in FACTORS})
    return rows


def _values() -> list[tuple[str, str]]:
    return [(name, value) for name, values in FACTORS.items() for value in values]


def _is_pair(one: tuple[str, str], other: tuple[str, str]) -> bool:
    return one[0] != other[0] and goes_together(dict((one, other)))


def name_of(row: Row) -> str:
    """Return the values of a row that are not the ordinary ones, as the name of a test."""
    return ", ".join(value for name, value in row.items() if value != ORDINARY[name]) or "ordinary"
