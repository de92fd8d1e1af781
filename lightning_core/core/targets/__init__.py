"""Targets: when a job counts as met. The table of all kinds, and the readers that use it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from lightning_core.core.limits import check_length
from lightning_core.core.targets.base import STEP_LOSS, Target, is_loss, is_number
from lightning_core.core.targets.batches import BatchTarget
from lightning_core.core.targets.epochs import EpochTarget
from lightning_core.core.targets.judge import Judge, Met, newest
from lightning_core.core.targets.loss import LossTarget

__all__ = [
    "STEP_LOSS", "TARGETS", "BatchTarget", "EpochTarget", "Judge", "LossTarget", "Met", "Target", "as_target",
    "is_loss", "newest", "parse_target", "target_from_dict",
]  # fmt: skip

# Characters of a target in one line.
MAX_LINE = 1000

TARGETS: list[type[Target]] = [BatchTarget, EpochTarget, LossTarget]
"""Every kind of target."""


def target_from_dict(value: Mapping[str, Any]) -> Target:
    """Return the target that :meth:`Target.to_dict` gave.

    Raises:
        ValueError: If a value is out of its range, or no kind of target has these keys.
        TypeError: If a key is missing or unknown.
    """
    for kind in TARGETS:
        if kind.KEY in value:
            return kind.from_dict(value)
    raise ValueError(f"target must have one of the keys {', '.join(kind.KEY for kind in TARGETS)}, got {dict(value)}")


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
    for kind in TARGETS:
        if (target := kind.from_line(text)) is not None:
            return target
    raise ValueError(f"target must be like {_forms()}, got {text!r}")


def as_target(value: object) -> Target:
    """Return a target that was given as one, or as one line.

    Raises:
        ValueError: If it is neither, or the line cannot be read.

    Example::

        >>> as_target("val_acc>=0.9")
        LossTarget(metric='val_acc', at_most=None, at_least=0.9, best=1.0, for_evaluations=1)
        >>> as_target(0.35)  # doctest: +ELLIPSIS
        Traceback (most recent call last):
        ...
        ValueError: target must be like 'train_loss<=0.35', ..., got 0.35; did you mean 'loss<=0.35'?
    """
    if isinstance(value, Target):
        return value
    if isinstance(value, str):
        return parse_target(value)
    shown = repr(value) if len(repr(value)) <= 80 else f"{repr(value)[:77]}..."
    hint = f"; did you mean '{STEP_LOSS}<={value}'?" if is_number(value) else ""
    if isinstance(value, Mapping):
        hint = "; a mapping is for bundle files"
    *kinds, last = (kind.__name__ for kind in reversed(TARGETS))
    raise ValueError(f"target must be like {_forms()}, a {', '.join(kinds)} or {last}, got {shown}{hint}")


def _forms() -> str:
    forms = [repr(form) for kind in reversed(TARGETS) for form in kind.FORMS]
    return f"{', '.join(forms[:-1])} or {forms[-1]}"
