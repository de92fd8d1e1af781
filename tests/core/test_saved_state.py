"""Saved state: what comes back is what was saved, and what is missing is noticed."""

from __future__ import annotations

import json
import math
from collections import deque
from functools import partial
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lightning_core.core.saved_state import StateError, decode, encode, restored
from lightning_core.estimators import ESTIMATORS
from lightning_core.policies import POLICIES
from lightning_core.policies.round_robin import RoundRobin
from lightning_core.scheduler.scheduler import Scheduler
from lightning_core.scheduler.settings import Settings
from lightning_core.testing.checks import saved_and_restored
from lightning_core.testing.estimator_conformance import check_replay, check_rows
from lightning_core.testing.history_checks import check_history
from lightning_core.testing.policy_conformance import check_policy
from lightning_core.testing.schedule_checks import check_schedule
from tests.examples import examples

NUMBERS = st.floats(width=64) | st.integers(-(2**70), 2**70)
VALUES = st.recursive(
    NUMBERS | st.none() | st.booleans() | st.text(),
    lambda inner: st.lists(inner) | st.tuples(inner, inner) | st.dictionaries(st.integers() | st.text(), inner),
    max_leaves=12,
)
ARGUMENTS = {"fixed": {"shares": [0.5, 0.4, 1.0, 0.3, 0.6]}}
# Attributes that the random views of the suite change too rarely; the stories of the scheduler do.
RARE = {("laira", "_law")}


def same(one: Any, other: Any) -> bool:
    """Compare with types, and with NaN equal to itself."""
    return repr(one) == repr(other)


@given(VALUES)
@settings(max_examples=examples(30))
def test_a_value_comes_back_with_its_type(value: Any) -> None:
    assert same(decode(json.loads(json.dumps(encode(value), allow_nan=False))), value)


@pytest.mark.parametrize(
    "array",
    [
        np.array([0.0, -0.0, 5e-324, 1 / 3, 1e308, math.nan, -math.inf]),
        np.arange(6).reshape(2, 3),
        np.zeros((3, 0)),
        np.array([True, False]),
        np.asfortranarray(np.arange(6.0).reshape(2, 3))[:, ::2],
    ],
)
def test_an_array_comes_back_to_the_bit(array: np.ndarray) -> None:
    back = decode(json.loads(json.dumps(encode(array))))
    assert (back.dtype, back.shape, back.tobytes()) == (array.dtype, array.shape, array.tobytes())
    back[...] = 0  # it can be written to


def test_a_deque_keeps_its_size() -> None:
    back = decode(encode(deque([1.0, 2.0], 2)))
    back.append(3.0)
    assert back == deque([2.0, 3.0])


@pytest.mark.parametrize("value", [object(), np.array(["a"]), 1j, np.float32(1.0), b"x"])
def test_invalid_state_is_refused(value: Any) -> None:
    with pytest.raises(TypeError, match="state"):
        encode(value)


@pytest.mark.parametrize(
    "value",
    [
        {"array": "object", "shape": [1], "data": "AAAAAAAAAAA="},
        {"array": "float64", "shape": [2], "data": "AAAAAAAAAAA="},
        {"array": "float64", "shape": [1], "data": "no base64"},
        {"array": "float64", "shape": ["x"], "data": "AAAAAAAAAAA="},
        {"float": "one"},
        {"dict": [[[], 1]]},
        {"dict": [1]},
        {"deque": [1], "size": "x"},
        {"set": [[]]},
    ],
)
def test_a_damaged_value_is_refused(value: Any) -> None:
    with pytest.raises(StateError, match="not a saved state"):
        decode(value)


def test_a_state_of_other_names_is_refused() -> None:
    with pytest.raises(StateError, match=r"RoundRobin must have the state \['_ends', '_turn'\], got \['_ends'\]"):
        restored(RoundRobin(), {"_ends": 1.0})
    saved = Scheduler(Settings(policy="triage")).state()
    with pytest.raises(StateError, match="RoundRobin must have the state"):
        restored(Scheduler(Settings(policy="rr")), saved)
    del saved["table"]["columns"]["weight"]
    with pytest.raises(StateError, match="the table must have the columns"):
        restored(Scheduler(Settings(policy="triage")), saved)


@pytest.mark.parametrize("key", ["table", "curves", "policy", "now", "closing"])
@pytest.mark.parametrize("value", [None, 1, "x", [], {}])
def test_a_damaged_state_of_a_scheduler_is_refused(key: str, value: Any) -> None:
    saved = Scheduler().state()
    if (key, value) == ("now", 1):
        return
    with pytest.raises(StateError):
        restored(Scheduler(), saved | {key: value})


def _without(kind: type, name: str) -> type:
    return type(kind.__name__, (kind,), {"STATE": tuple(other for other in kind.STATE if other != name)})  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("policy", "attribute"),
    [
        (name, attribute)
        for name, kind in sorted(POLICIES.items())
        for attribute in kind.STATE  # type: ignore[attr-defined]
        if (name, attribute) not in RARE
    ],
)
def test_the_suite_of_policies_detects_unsaved_state(policy: str, attribute: str) -> None:
    with pytest.raises((AssertionError, KeyError)):
        check_policy(partial(_without(POLICIES[policy], attribute), **ARGUMENTS.get(policy, {})))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("estimator", "attribute"),
    [(name, attribute) for name, make in sorted(ESTIMATORS.items()) for attribute in type(make()).STATE],  # type: ignore[attr-defined]
)
def test_the_suite_of_estimators_detects_unsaved_state(estimator: str, attribute: str) -> None:
    mutant = _without(type(ESTIMATORS[estimator]()), attribute)
    with pytest.raises((AssertionError, IndexError)):
        _check_state(mutant)


def _check_state(make: Any) -> None:
    check_replay(make)
    check_history(make)
    check_schedule(make)


def _without_leaving(kind: Any) -> Any:
    return type(kind.__name__, (kind,), {"keep": lambda self, stays: None})


@pytest.mark.parametrize("policy", sorted(name for name, kind in POLICIES.items() if hasattr(kind, "keep")))
def test_the_suite_of_policies_detects_rows_that_do_not_leave(policy: str) -> None:
    with pytest.raises((AssertionError, IndexError)):
        check_policy(partial(_without_leaving(POLICIES[policy]), **ARGUMENTS.get(policy, {})))


@pytest.mark.parametrize("estimator", sorted(ESTIMATORS))
def test_the_suite_of_estimators_detects_rows_that_do_not_leave(estimator: str) -> None:
    with pytest.raises(AssertionError, match=r"keep\(\) must leave the rows"):
        check_rows(_without_leaving(type(ESTIMATORS[estimator]())))


def test_a_part_that_cannot_be_saved_is_named() -> None:
    class Forgetful:
        """Has no state()."""

    with pytest.raises(AssertionError, match="Forgetful must have the methods state"):
        saved_and_restored(Forgetful(), Forgetful())
