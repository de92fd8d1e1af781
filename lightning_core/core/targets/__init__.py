"""Targets, which define when a job counts as met: the table of all kinds, and the readers that use it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from lightning_core.core.limits import check_length, shown
from lightning_core.core.names import closest, did_you_mean
from lightning_core.core.parts import AbsentPartError, broken_words, outside_targets
from lightning_core.core.targets.base import STEP_LOSS, Target, is_loss, is_number
from lightning_core.core.targets.batches import BatchTarget
from lightning_core.core.targets.epochs import EpochTarget
from lightning_core.core.targets.judge import Met, TargetJudge, newest
from lightning_core.core.targets.loss import LossTarget

__all__ = [
    "STEP_LOSS",
    "TARGETS",
    "BatchTarget",
    "EpochTarget",
    "LossTarget",
    "Met",
    "Target",
    "TargetJudge",
    "as_target",
    "is_loss",
    "newest",
    "own_keys",
    "parse_target",
    "target_from_dict",
    "target_keys",
    "target_kinds",
]  # fmt: skip

# Characters of a target in one line.
MAX_LINE = 1000
# Similarity from which an unknown key is taken for a misspelt one: `lose` and `epoch` are, `val_loss` is a metric.
NEARLY = 0.75

TARGETS: list[type[Target]] = [BatchTarget, EpochTarget, LossTarget]
"""The library's own kinds of targets."""


def target_kinds() -> Iterator[type[Target]]:
    """Yield the kinds of targets: the library's own, and then those of other packages, which are loaded by then."""
    yield from TARGETS
    yield from outside_targets()


def target_from_dict(value: Mapping[str, Any]) -> Target:
    """Return the target that :meth:`Target.to_dict` gave.

    Raises:
        ValueError: If a value is out of its range, or no kind of target has these keys; an
            :class:`~lightning_core.core.parts.AbsentPartError` if it may be of a part that is not installed.
        TypeError: If a key is missing or unknown.
    """
    for kind in target_kinds():
        if kind.KEY in value:
            return kind.from_dict(value)
    keys = ", ".join(kind.KEY for kind in target_kinds())
    words = f"target must have one of the keys {keys}, got {dict(value)}"
    if value.keys().isdisjoint(own_keys()):
        raise AbsentPartError(f"{words}; it may be of a part that is not installed here{broken_words()}")
    raise ValueError(words)


def parse_target(text: str) -> Target:
    """Read a target that is written in one line.

    Raises:
        ValueError: If it is of none of the forms, or a number is out of its range.

    Example::

        >>> [str(parse_target(text)) for text in ("train_loss<=0.35", "val_acc >= 0.9", "2000 batches")]
        ['train_loss <= 0.35', 'val_acc >= 0.9', '2000 batches']
        >>> parse_target("val_acc >= 92 of 100 for 2 evaluations")
        LossTarget(metric='val_acc', at_most=None, at_least=92.0, best=100.0, for_evaluations=2)
    """
    check_length("target line", text, MAX_LINE)
    for kind in target_kinds():
        if (target := kind.from_line(text)) is not None:
            return target
    raise ValueError(f"target must be like {_forms()}, got {text!r}{broken_words()}")


def as_target(value: object) -> Target:
    """Return a target that was given as one, as one line, or with the keys of a bundle.

    Args:
        value: A target; one line such as ``val_acc>=0.9``; or ``{loss: E}``, ``{metric: NAME, at_most: E}``, ``{metric:
            NAME, at_least: X, best: 1.0}``, each with ``for_evaluations: N`` if N evaluations in a row must reach it;
            or ``{batches: N}`` or ``{epochs: N}``, which may have a ``metric`` and a ``mode``.

    Raises:
        ValueError: If it has none of these forms, or a number is out of range.

    Example::

        >>> as_target("val_acc>=0.9") == as_target({"metric": "val_acc", "at_least": 0.9})
        True
        >>> as_target({"val_loss": 0.02})
        Traceback (most recent call last):
        ...
        ValueError: unknown key 'val_loss'; write 'val_loss<=0.02', or >= if more is better
        >>> as_target(0.35)  # doctest: +ELLIPSIS
        Traceback (most recent call last):
        ...
        ValueError: target must be like 'train_loss<=0.35', ..., got 0.35; did you mean 'loss<=0.35'?
    """
    if isinstance(value, Target):
        return value
    if isinstance(value, str):
        return parse_target(value)
    if not isinstance(value, Mapping):
        hint = f"; did you mean '{STEP_LOSS}<={value}'?" if is_number(value) else ""
        raise ValueError(f"target must be like {_forms()}, got {shown(value, 80)}{hint}")
    if all(key in own_keys() for key in value):
        kinds = TARGETS
    else:
        kinds, keys = list(target_kinds()), target_keys()
        for key in value:
            if key not in keys:
                raise ValueError(f"unknown key {shown(key)}{_key_hint(key, value, keys)}{broken_words()}")
    for kind in kinds:
        if (target := kind.from_terms(value)) is not None:
            return target
    mappings = [form for kind in reversed(list(target_kinds())) for form in kind.MAPPINGS]
    raise ValueError(f"target must be like {_forms()}, or {', '.join(mappings)}, got {_given(value)}")


def own_keys() -> list[str]:
    """Return all keys of the library's own targets."""
    return [key for kind in TARGETS for key in kind.KEYS]


def target_keys() -> list[str]:
    """Return all keys of targets, those of other packages too."""
    return [key for kind in target_kinds() for key in kind.KEYS]


def _key_hint(key: object, terms: Mapping[str, Any], keys: list[str]) -> str:
    """Return a suggestion for an unknown key: without a key that names the quantity, it is a metric or a typo."""
    is_metric = terms.keys() - {key} <= {"best", "for_evaluations"} and closest(key, keys, NEARLY) is None
    if not (isinstance(key, str) and is_metric):
        return did_you_mean(key, keys)
    value = terms[key] if isinstance(terms[key], str | int | float) else "E"
    return f"; write '{shown(f'{key}<={value}')[1:-1]}', or >= if more is better"


def _forms() -> str:
    forms = [repr(form) for kind in reversed(list(target_kinds())) for form in kind.FORMS]
    return f"{', '.join(forms[:-1])} or {forms[-1]}"


def _given(terms: Mapping[str, Any]) -> str:
    return f"the keys {', '.join(sorted(terms))}" if terms else "none of them"
