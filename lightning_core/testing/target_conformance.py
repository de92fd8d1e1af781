"""Conformance suite for targets, on which the scheduler and the views rely.

Run it on examples of a kind of your own, once the kind is in :data:`~lightning_core.core.targets.TARGETS`::

    for target in (MyTarget(1.5), MyTarget(3.0)):
        check_target(target)

Each check of :data:`CHECKS` can be run by itself as well.
"""

from __future__ import annotations

import copy
import json
import math
from collections.abc import Callable

from lightning_core.core.codec import decode_event, encode_event
from lightning_core.core.commands import SetTerms
from lightning_core.core.events import Submit
from lightning_core.core.jobs import Job
from lightning_core.core.targets import Target, as_target, parse_target, target_from_dict, target_kinds
from lightning_core.testing.checks import require

# Observations of a step's loss whose mean counts.
WINDOW = 5


def check_target(target: Target) -> None:
    """Run all checks on an example of a kind of target.

    Args:
        target: The example.

    Raises:
        AssertionError: If a rule is broken; the message names it.

    Example::

        >>> from lightning_core.core.targets import LossTarget
        >>> check_target(LossTarget("val_acc", at_least=0.9))
    """
    for check in CHECKS:
        check(target)


def check_registered(target: Target) -> None:
    """Check that the kind is in the table, under a key of its own, and names its keys and forms."""
    kind = type(target)
    require(isinstance(target, Target), f"a target must derive from Target, got {kind.__name__}")
    kinds = list(target_kinds())
    require(kind in kinds, f"{kind.__name__} must be in lightning_core.core.targets.TARGETS, or brought by a part")
    others = [other.__name__ for other in kinds if other is not kind and other.KEY == kind.KEY]
    require(not others, f"KEY {kind.KEY!r} of {kind.__name__} must be its own, but is that of {', '.join(others)}")
    body = target.to_dict()
    require(kind.KEY in body, f"to_dict() must have the key {kind.KEY!r}, got {sorted(body)}")
    require(set(body) <= set(kind.KEYS), f"to_dict() must have keys of KEYS {kind.KEYS}, got {sorted(body)}")
    require(len(kind.FORMS) > 0, "FORMS must have an example")


def check_spelling(target: Target) -> None:
    """Check that a target is read back from every form in which it is written, and by no other kind."""
    kind, line, body = type(target), str(target), target.to_dict()
    plain = json.loads(json.dumps(body, allow_nan=False))
    try:
        kind.from_dict(plain)
    except TypeError as error:
        raise AssertionError(f"from_dict(to_dict()) must give {target!r}: by default the keys of to_dict() are the "
                             f"arguments of {kind.__name__}: {error}") from None  # fmt: skip
    for form in kind.FORMS:
        require(type(parse_target(form)) is kind, f"{form!r} of FORMS must be read as a {kind.__name__}")
    for other in target_kinds():
        if other is not kind:
            require(other.from_line(line) is None, f"{line!r} must not be read as a {other.__name__}")
            require(other.from_terms(body) is None, f"{body} must not be read as a {other.__name__}")
    read = {
        "as_target(target)": as_target(target),
        f"parse_target({line!r})": parse_target(line),
        "target_from_dict(to_dict())": target_from_dict(plain),
        "from_terms(to_dict())": kind.from_terms(plain),
        "a deep copy": copy.deepcopy(target),
    }
    for how, found in read.items():
        require(found == target, f"{how} must give {target!r}, got {found!r}")
        require(hash(found) == hash(target), f"{how} must have the hash of the target: it must be frozen")
    for event in (Submit((Job("a", 900.0, target),)), SetTerms("a", target=target)):
        again = decode_event(encode_event(event))
        require(again == event, f"an event must come back from the journal, got {again!r}")


def check_scale(target: Target) -> None:
    """Check that the falling number comes down to the threshold as the value reaches the goal."""
    value = target.logged(target.falling(0.3))
    require(math.isclose(value, 0.3), f"logged(falling(0.3)) must be 0.3, got {value}")
    require(target.reaches(target.goal), f"the goal {target.goal} must reach itself")
    if not target.observes:
        require((target.work or 1) >= 1, f"work must be at least 1 batch, got {target.work}")
        require(math.isnan(target.threshold), f"threshold must be NaN where batches count, got {target.threshold}")
        return
    require(target.work is None, f"work must be None where values are observed, got {target.work}")
    require(math.isfinite(target.goal), f"goal must be finite, got {target.goal}")
    falling = target.falling(target.goal)
    require(falling == target.threshold, f"threshold must be falling(goal), {falling}, got {target.threshold}")
    worse = target.logged(target.threshold + 0.5)
    require(not target.reaches(worse), f"{worse} must not reach the goal {target.goal}: falling values improve")
    better = target.better(worse, target.goal)
    require(better == target.goal, f"the better of {worse} and {target.goal} must be the goal, got {better}")


def check_met(target: Target) -> None:
    """Check that a target is met by enough work or observations, and by no less."""
    goal, batches = target.goal, target.work or 100
    require(target.evaluations >= 1, f"evaluations must be at least 1, got {target.evaluations}")
    if not target.observes and target.work is None:
        require(not target.is_met(10**12, [], True, WINDOW), "it must not be met while its work is unknown")
        check_met(target.resolved(9))
        return
    values = [goal] * max(WINDOW, target.evaluations)
    for evaluated in (True, False):
        met = target.is_met(batches, values, evaluated, WINDOW)
        require(met, f"{batches} batches and {len(values)} values at the goal must meet it (evaluated={evaluated})")
    value = target.reached(batches, values, True, WINDOW)
    require(value is not None and math.isclose(value, goal), f"reached() must be the goal {goal}, got {value}")
    if not target.observes:
        require(not target.is_met(batches - 1, values, True, WINDOW), f"{batches - 1} batches must not meet it")
        return
    require(not target.is_met(batches, [], True, WINDOW), "no evaluation must not meet it")
    few = values[: target.evaluations - 1]
    require(not target.is_met(batches, few, True, WINDOW), f"{len(few)} evaluations must not meet it")
    require(not target.is_met(batches, values[: WINDOW - 1], False, WINDOW), "less than a window must not meet it")
    worse = target.logged(target.threshold + 0.5)
    require(not target.is_met(batches, [*values, worse], True, WINDOW), f"{worse} as the newest must not meet it")
    value = target.reached(batches, [], False, WINDOW)
    require(value is None, f"reached() must be None while nothing is observed, got {value}")


def check_words(target: Target) -> None:
    """Check that all texts of a target are readable."""
    shown = target.show(target.goal)
    for name, words in (("show", shown), ("axis", target.axis), ("quantity", target.quantity),
                        ("observed", target.observed), ("str", str(target))):  # fmt: skip
        require(words != "" and words.isprintable(), f"{name} must be words on one line, got {words!r}")
    progress = target.describe_progress(3, target.goal)
    said = shown in progress or str(target) in progress
    require(said, f"describe_progress must name the goal, {shown!r}, got {progress!r}")
    require(target.describe_progress(3, None) != "", "describe_progress must say something before the first value")


CHECKS: tuple[Callable[[Target], None], ...] = (
    check_registered, check_spelling, check_scale, check_met, check_words,
)  # fmt: skip
"""Checks of every kind of target."""
