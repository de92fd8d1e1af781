"""Versions of a scheduler's saved state, and what brings the state of an older one to the newest.

A journal whose old events are thinned can only go on from a saved state. So each version needs a migration from the one
before it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from lightning_core.core.earlier_runs import BinnedCurve
from lightning_core.core.saved_state import StateError, decode, encode
from lightning_core.estimators.annealed_laws import AnnealedLaws
from lightning_core.estimators.earlier_curves import EarlierCurves
from lightning_core.estimators.power_laws import PowerLaws
from lightning_core.scheduler.tables.past_jobs import PastJobs
from lightning_core.scheduler.tables.table import NO_TRIAL, JobTable

# It rises when a column, or an attribute that is saved, comes, goes or changes.
VERSION = 18


def migrated(state: Mapping[str, Any], version: int) -> Mapping[str, Any]:
    """Return a saved state as the newest version has it.

    Args:
        state: State of a scheduler.
        version: Version that saved it.

    Raises:
        StateError: If no migration begins at this version, or the state is not one of it.
    """
    while version != VERSION:
        if version not in MIGRATIONS:
            raise StateError(f"the state of a scheduler must have version 1 to {VERSION}, got {version}")
        try:
            state = MIGRATIONS[version](state)
        except (KeyError, TypeError, ValueError) as error:
            raise StateError(f"not the state of a scheduler of version {version}: {error!r}") from error
        version += 1
    return state


def _to_2(state: Mapping[str, Any]) -> dict[str, Any]:
    """Number the jobs in the order of submission; none has left the table yet."""
    table, empty = state["table"], JobTable(1)
    jobs = len(table["names"])
    [capacity] = table["columns"]["active"]["shape"]
    ordinal = np.zeros(capacity, np.int64)
    ordinal[:jobs] = np.arange(jobs)
    columns = table["columns"] | {"ordinal": encode(ordinal)}
    table = table | {"columns": columns, "submissions": jobs, "past_resizes": encode(empty.past_resizes)}
    return {**state, "table": table, "past": PastJobs(1, 1).state()}


def _to_3(state: Mapping[str, Any]) -> dict[str, Any]:
    """No job was given earlier runs."""
    past = state["past"]
    return {**state, "table": _table_to_3(state["table"]), "past": past | {"table": _table_to_3(past["table"])}}


def _table_to_3(table: Mapping[str, Any]) -> dict[str, Any]:
    [capacity] = table["columns"]["active"]["shape"]
    usual = np.zeros(capacity)
    usual[: len(table["names"])] = np.nan
    columns = table["columns"] | {"usual_throughput": encode(usual)}
    return {**table, "columns": columns, "earlier": encode({})}


def _to_4(state: Mapping[str, Any]) -> dict[str, Any]:
    """Begin without learning rates: no job has reported any."""
    return {**state, "curves": state["curves"] | {"_schedules": encode({})}}


def _to_5(state: Mapping[str, Any]) -> dict[str, Any]:
    """The curves of jobs begin where they are now."""
    past = state["past"]
    return {**state, "table": _table_to_5(state["table"]), "past": past | {"table": _table_to_5(past["table"])}}


def _table_to_5(table: Mapping[str, Any]) -> dict[str, Any]:
    return {**table, "curves": [BinnedCurve().state() for _ in table["names"]]}


def _to_6(state: Mapping[str, Any]) -> dict[str, Any]:
    """No forecast is known to rest on earlier runs."""
    past = state["past"]
    return {**state, "table": _table_to_6(state["table"]), "past": past | {"table": _table_to_6(past["table"])}}


def _table_to_6(table: Mapping[str, Any]) -> dict[str, Any]:
    share = encode(np.zeros(table["columns"]["active"]["shape"]))
    return {**table, "columns": table["columns"] | {"history_share": share}}


def _to_7(state: Mapping[str, Any]) -> dict[str, Any]:
    """Move the power laws of a posterior into a part of their own; no row has earlier runs or learning rates."""
    curves = state["curves"]
    return {**state, "curves": curves | {name: _posterior_to_7(curves[name]) for name in ("bank", "_other")}}


def _posterior_to_7(bank: Mapping[str, Any] | None) -> Mapping[str, Any] | None:
    if bank is None or "_mean_x" not in bank:  # another estimator
        return bank
    rows, memories, _ = bank["_mean_x"]["shape"]
    laws = {name: bank[name if name.startswith("_") else f"_{name}"] for name in PowerLaws.STATE}
    cached = {"_asked": bank["_asked"], "_passage": bank["_passage"], "_share": encode(np.zeros(rows))}
    powers = np.zeros(memories)
    annealed = AnnealedLaws(PowerLaws(powers, 1.0, 0.5))
    return {"_laws": laws, "_annealed": annealed.state(), "_earlier": EarlierCurves(powers).state(), **cached}


def _to_8(state: Mapping[str, Any]) -> dict[str, Any]:
    """Judge all jobs anew."""
    past = state["past"]
    return {**state, "table": _table_to_8(state["table"]), "past": past | {"table": _table_to_8(past["table"])}}


def _table_to_8(table: Mapping[str, Any]) -> dict[str, Any]:
    [capacity] = table["columns"]["active"]["shape"]
    chance = np.zeros(capacity)
    chance[: len(table["names"])] = np.nan
    new = {"chance": encode(chance), "judged_at": encode(np.zeros(capacity, np.int64))}
    return {**table, "columns": table["columns"] | new}


def _to_9(state: Mapping[str, Any]) -> dict[str, Any]:
    """Let what was asked of jobs be a level of the one who asked last; there were no controllers."""
    past = state["past"]
    now = {"table": _table_to_9(state["table"]), "past": past | {"table": _table_to_9(past["table"])}}
    return {**state, **now, "controllers": []}


def _table_to_9(table: Mapping[str, Any]) -> dict[str, Any]:
    if "asked" in table:  # that of past jobs, which a migration has begun as it is now
        return dict(table)
    paused_by, told_by = decode(table["paused_by"]), decode(table["told_by"])
    paused, evicted, told = (decode(table["columns"][name]).tolist() for name in ("paused", "evicted", "told_size"))
    asked: dict[int, dict[str, tuple[Any, ...]]] = {}
    for row in range(len(table["names"])):
        if paused[row]:
            asked.setdefault(row, {})[paused_by[row]] = (True, evicted[row], None, None, None)
        if told[row]:
            by = told_by[row]
            hold = asked.setdefault(row, {}).get(by, (None, False))[:2]
            asked[row][by] = (*hold, None, max(told[row], 0), None)
    others = {name: value for name, value in table.items() if name not in ("paused_by", "told_by")}
    return {**others, "asked": encode(asked), "own_location": encode({})}


def _to_10(state: Mapping[str, Any]) -> dict[str, Any]:
    """There was no cloud: nothing is seen, wanted or spent."""
    nothing = ["no_nodes", [], ""]
    cloud = {"nodes": [[], [], 0], "wanted": [0, 0, 0, nothing], "allowance": [None, ["withdrawn", [], ""]]}
    return {**state, "cloud": cloud | {"spent": 0.0, "trouble": {}, "failed": {}}}


def _to_11(state: Mapping[str, Any]) -> dict[str, Any]:
    """Nothing is known of zones: no node has a place, and no quote has offers."""
    cloud = state["cloud"]
    cloud = {**cloud, "nodes": [*cloud["nodes"], []], "wanted": [*cloud["wanted"], []]}
    controllers = [_market_to_11(one) if "quotes" in one else one for one in state["controllers"]]
    return {**state, "cloud": cloud, "controllers": controllers}


def _market_to_11(market: Mapping[str, Any]) -> dict[str, Any]:
    quotes = [[*quote, [], 0.0, 0.0] for quote in market["quotes"]]
    places = {"seen": [], "wanted": [], "homes": [], "lost": {}, "leeway": [0.0, 1.0, False]}
    return {**market, "quotes": quotes, "wanted": [*market["wanted"], []], "places": places}


def _to_12(state: Mapping[str, Any]) -> dict[str, Any]:
    """Nothing is kept of the jobs that gave the selector feedback, and it knew nothing before them."""
    if (selector := state["selector"]) is None:
        return dict(state)
    [policies] = selector["totals"]["shape"]
    return {**state, "selector": {**selector, "earlier_count": 0, "jobs_seen": encode(np.zeros((0, policies)))}}


def _to_13(state: Mapping[str, Any]) -> dict[str, Any]:
    """Nodes were not billed by the second: those that are there have been since the interval began."""
    cloud = state["cloud"]
    spot, on_demand, *rest = cloud["nodes"]
    cloud = {**cloud, "nodes": [spot, on_demand, *rest, [], []]}
    nodes = [(node, kind) for several, kind in ((spot, True), (on_demand, False)) for node in several]
    controllers = [_market_to_13(one, nodes) if "quotes" in one else one for one in state["controllers"]]
    return {**state, "cloud": cloud, "controllers": controllers}


def _market_to_13(market: Mapping[str, Any], nodes: list[tuple[str, bool]]) -> dict[str, Any]:
    began, quotes = None, [[float(quote[3]), quote] for quote in market["quotes"]]
    if (interval := market["interval"]) is not None:
        began = decode(interval["began"])
        interval = {**interval, "held": interval["paid"], "batches": 0}
        del interval["paid"]
    billed = [[node, kind, began or 0.0] for node, kind in nodes]
    bill = {"nodes": billed, "places": [], "quotes": quotes, "until": began, "costs": []}
    return {**market, "interval": interval, "bill": bill}


def _to_14(state: Mapping[str, Any]) -> dict[str, Any]:
    """No quote had come within an interval, and its nodes were planned when it began."""
    controllers = [_market_to_14(one) if "quotes" in one else one for one in state["controllers"]]
    return {**state, "controllers": controllers}


def _market_to_14(market: Mapping[str, Any]) -> dict[str, Any]:
    if (interval := market["interval"]) is not None:
        interval = {**interval, "decided": interval["began"]}
    return {**market, "interval": interval, "news": None}


def _to_15(state: Mapping[str, Any]) -> dict[str, Any]:
    """Nothing is known of a market before the pool."""
    controllers = [
        {**one, "plans": {**one["plans"], "before": None}} if "quotes" in one else one for one in state["controllers"]
    ]
    return {**state, "controllers": controllers}


def _to_16(state: Mapping[str, Any]) -> dict[str, Any]:
    """Nothing is known of the memory of any job, none has run out of it, and none is known to be leaving."""
    past = state["past"]
    return {**state, "table": _table_to_16(state["table"]), "past": past | {"table": _table_to_16(past["table"])}}


def _table_to_16(table: Mapping[str, Any]) -> dict[str, Any]:
    shape, jobs = table["columns"]["active"]["shape"], len(table["names"])
    unknown, never = np.zeros(shape), np.zeros(shape, np.int64)
    unknown[:jobs], never[:jobs] = np.nan, NO_TRIAL
    columns = {name: encode(unknown) for name in ("memory", "held_memory", "told_memory")}
    return {**table, "columns": table["columns"] | columns | {"trial_until": encode(never)}, "leaving": encode({})}


def _to_17(state: Mapping[str, Any]) -> dict[str, Any]:
    """No job is limited by what is its owner's."""
    past = state["past"]
    return {**state, "table": _table_to_17(state["table"]), "past": past | {"table": _table_to_17(past["table"])}}


def _table_to_17(table: Mapping[str, Any]) -> dict[str, Any]:
    unlimited = np.zeros(table["columns"]["active"]["shape"])
    unlimited[: len(table["names"])] = np.inf
    return {**table, "columns": table["columns"] | {name: encode(unlimited) for name in ("owner_share", "owner_cap")}}


def _to_18(state: Mapping[str, Any]) -> dict[str, Any]:
    """No training is known to go on after its target is met."""
    past = state["past"]
    return {**state, "table": _table_to_18(state["table"]), "past": past | {"table": _table_to_18(past["table"])}}


def _table_to_18(table: Mapping[str, Any]) -> dict[str, Any]:
    return {**table, "at_least": encode({}), "met_at": encode({})}


MIGRATIONS: dict[int, Callable[[Mapping[str, Any]], Mapping[str, Any]]] = {
    1: _to_2, 2: _to_3, 3: _to_4, 4: _to_5, 5: _to_6, 6: _to_7, 7: _to_8, 8: _to_9, 9: _to_10, 10: _to_11, 11: _to_12,
    12: _to_13, 13: _to_14, 14: _to_15, 15: _to_16, 16: _to_17, 17: _to_18,
}  # fmt: skip
