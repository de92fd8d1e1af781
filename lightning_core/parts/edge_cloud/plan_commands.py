"""``lightning-core place apply``, ``demand`` and ``end``: the pool that is up is given a plan, and moves jobs by it."""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from lightning_core.cli.arguments import add_pool, whole_number
from lightning_core.core.answers import JobStatus, State
from lightning_core.core.durations import WallTime, format_duration, parse_duration, parse_when
from lightning_core.core.events import PartEvent
from lightning_core.core.limits import MAX_COUNT, shown
from lightning_core.core.names import listed
from lightning_core.parts.edge_cloud.day_plan import CLOUD, DayPlan, DemandSeen, PlanGiven
from lightning_core.parts.edge_cloud.plan_arguments import add_limits, add_plan, solve
from lightning_core.pool import Pool
from lightning_core.scheduler.summary import EXIT_MET
from lightning_core.server.clocks import wall_clock
from lightning_core.view.tables import print_table
from lightning_core.view.text import clean

if TYPE_CHECKING:
    from lightning_core.parts.edge_cloud.placement import Demands, TaskPlacement

Asked = Mapping[str, Sequence[Any]]
"""By job, what the plan asks of it: whether it is held, location, devices, reason."""


def add_commands(commands: Any) -> None:
    """Add ``apply``, ``demand`` and ``end`` to the subcommands of ``place``."""
    description = "plan a day and give the plan to the pool that is up, which moves its jobs by it"
    apply = commands.add_parser("apply", help=description, description=description)
    apply.set_defaults(run=_apply)
    add_plan(apply)
    apply.add_argument("--period", required=True, metavar="TIME", help="length of a period, such as 8h")
    begins = (
        "when the first period begins: a duration from now, or a time such as 22:00 or 2026-11-23T22:00, which may be "
        "past if it has a date (default: now)"
    )
    apply.add_argument("--begins", metavar="WHEN", help=begins)
    add_limits(apply)
    level = (
        "level of the file at which the jobs train, as their configs say; the plan is made with it alone (needed where "
        "the file has several)"
    )
    foreseen = (
        "forecast the demand that the pool is told, and change the period for the next steps (default: no forecast)"
    )
    apply.add_argument("--forecast", choices=("persistence", "autoregression", "trend"), default="", help=foreseen)
    apply.add_argument("--step", default="15m", metavar="TIME", help="length of a step of the forecasts (default 15m)")
    apply.add_argument("--level", metavar="NAME", help=level)
    most = "most tasks that may move at a time within a period (default: any number)"
    apply.add_argument("--max-moves", type=whole_number(0, MAX_COUNT), default=MAX_COUNT, metavar="N", help=most)
    description = (
        "tell the pool what arrives now, in samples a second of a task; jobs outgrow their places, or fit again"
    )
    demand = commands.add_parser("demand", help=description, description=description)
    demand.set_defaults(run=_demand)
    demand.add_argument("rates", nargs="+", metavar="JOB=RATE", help="job of the plan, and its rate")
    description = "take the plan back: the policy alone says which job trains where"
    end = commands.add_parser("end", help=description, description=description)
    end.set_defaults(run=_end)
    for one in (apply, demand, end):
        add_pool(one)


def _apply(arguments: argparse.Namespace) -> int:
    from lightning_core.parts.edge_cloud.demands_file import read_demands
    from lightning_core.parts.edge_cloud.placement.reconfigurer import ReconfigurationLimits
    from lightning_core.parts.edge_cloud.plan_data import plan_of

    try:
        length = parse_duration(arguments.period)
    except ValueError as error:
        raise ValueError(f"--period: {error}") from None
    try:
        step = parse_duration(arguments.step)
    except ValueError as error:
        raise ValueError(f"--step: {error}") from None
    begins = read_begin(arguments.begins)
    limits = ReconfigurationLimits(arguments.max_extra_cost, arguments.max_moves, arguments.move_price)
    demands = at_level(read_demands(arguments.demands), arguments.level)
    with Pool.connect(arguments.pool) as pool:
        locations = pool.settings.locations
        placement = solve(arguments, demands).placement
        plan = plan_of(
            placement, length, begins, on_wall=True, limits=limits, reconfigure=arguments.reconfigure,
            forecast=arguments.forecast, step=step,
        )  # fmt: skip
        before, jobs = _asked(pool), pool.jobs()
        pool.client.event(PartEvent.of(PlanGiven(plan)))
        if arguments.level is not None:
            print(f"note: planned at {clean(arguments.level)}, at which the configs of all jobs must train: "
                  "the plan does not set their precision")  # fmt: skip
        for line in _lacks(plan, placement, locations):
            print(f"note: {clean(line)}")
        _show(pool, before, jobs)
    return EXIT_MET


def _demand(arguments: argparse.Namespace) -> int:
    seen = DemandSeen(tuple(read_rates(arguments.rates).items()))
    with Pool.connect(arguments.pool) as pool:
        before, jobs = _asked(pool), pool.jobs()
        pool.client.event(PartEvent.of(seen))
        _show(pool, before, jobs)
    return EXIT_MET


def _end(arguments: argparse.Namespace) -> int:
    with Pool.connect(arguments.pool) as pool:
        before = _asked(pool)
        pool.client.event(PartEvent.of(PlanGiven(None)))
    held = sum(bool(one[0]) for one in before.values())
    print(f"the plan has ended: {len(before)} jobs are left to the policy, {held} of them were held" if before else
          "no plan stood")  # fmt: skip
    return EXIT_MET


def at_level(demands: Demands, name: str | None) -> Demands:
    """Return demands that are served at one level: a pool's jobs train at the precision that their configs say.

    Args:
        demands: The demands.
        name: Name of the level; None for the only one.

    Raises:
        ValueError: If there is no such level, or none is named of several.
    """
    levels = listed(demands.levels)
    if name is None and len(demands.levels) > 1:
        raise ValueError(f"--level must be the level at which the jobs train, one of {levels}: a plan does not set it")
    if name is not None and name not in demands.levels:
        raise ValueError(f"--level must be one of {levels}, got {shown(name)}")
    return demands if name is None else replace(demands, levels={name: demands.levels[name]})


def read_begin(text: str | None) -> float:
    """Return when the first period begins, as local seconds since 1970.

    Args:
        text: Time or duration from now; None for the present.

    Raises:
        ValueError: If it is no time.
    """
    clock = wall_clock()
    now = clock.seconds + clock.utc_offset
    if text is None:
        return now
    try:
        when = parse_when(text)
        if not isinstance(when, WallTime):
            return now + when
        if when.day is not None and when.time.tzinfo is None:
            at = datetime.combine(when.day, when.time)
        else:
            at = when.resolve(datetime.fromtimestamp(clock.seconds)).at
    except ValueError as error:
        raise ValueError(f"--begins: {error}") from None
    return at.replace(tzinfo=UTC).timestamp()


def read_rates(words: Sequence[str]) -> dict[str, float]:
    """Return the rate of each job of ``JOB=RATE``.

    Raises:
        ValueError: If one has another form, or a job is there twice.

    Example::

        >>> read_rates(["cars=18", "bus=2.5"])
        {'cars': 18.0, 'bus': 2.5}
        >>> read_rates(["cars"])
        Traceback (most recent call last):
        ...
        ValueError: expected JOB=RATE, with the rate in samples a second, got 'cars'
    """
    rates: dict[str, float] = {}
    for word in words:
        name, _, text = word.rpartition("=")
        try:
            rate = float(text)
        except ValueError:
            name = ""
        if not name:
            raise ValueError(f"expected JOB=RATE, with the rate in samples a second, got {shown(word)}")
        if name in rates:
            raise ValueError(f"{shown(name)} must have one rate, got two")
        rates[name] = rate
    return rates


def _asked(pool: Pool) -> Asked:
    """Return what the plan of a pool asks now."""
    controllers = pool.about()["controllers"]
    if "plan" not in controllers:
        raise ValueError("the pool takes no plan: its section must have controllers: {plan: {}}")
    asked: Asked = (controllers["plan"] or {}).get("asked", {})
    return asked


def _show(pool: Pool, before: Asked, jobs: Sequence[JobStatus]) -> None:
    """Print what has changed in what the plan asks, and why.

    Args:
        pool: The pool.
        before: Asks of the plan that stood before.
        jobs: The jobs as they were then.
    """
    (now, _), about = pool.look(), pool.about()
    plan, locations = about["controllers"]["plan"], about["settings"]["locations"]
    print(_period(plan, now))
    there = {job.name: job for job in jobs if job.state is not State.ENDED}
    rows = [
        [clean(name), _now(there.get(name), locations), _next(one), clean(str(one[3]))]
        for name, one in plan["asked"].items()
        if one != before.get(name)
    ]
    gone = [name for name in before if name not in plan["asked"] and name in there]
    rows += [[clean(name), _now(there[name], locations), "as the policy says", "not in the plan"] for name in gone]
    rows += [
        [clean(name), _now(there.get(name), locations), "no more", clean(why)] for name, why in plan["short"].items()
    ]
    if rows:
        print_table(["job", "now", "planned", "why"], rows)
    else:
        print("nothing moves")


def _period(plan: Mapping[str, Any], now: float) -> str:
    left = None if plan["next"] is None else format_duration(max(plan["next"] - now, 0.0))
    if plan["period"] is not None:
        return f"the plan stands: {clean(plan['period'])}, for another {left}"
    return "the plan is over" if left is None else f"the plan begins in {left}"


def _now(job: JobStatus | None, locations: Sequence[str]) -> str:
    if job is None:
        return "not submitted"
    at = sorted({locations[device] for device in job.devices})
    return f"{clean(', '.join(at))}, {len(job.devices)}" if at else "no device"


def _next(one: Sequence[Any]) -> str:
    hold, location, devices, _ = one
    return "held" if hold else f"{clean(location)}, {devices}"


def _lacks(plan: DayPlan, placement: TaskPlacement, locations: Sequence[str]) -> list[str]:
    """Return in words where a plan counts on more devices than a pool has."""
    has = Counter(locations)
    counts = {node.name: sum(count for _, count in node.gpus) for node in plan.nodes}
    periods = range(len(plan.periods))
    gpus = [name for name, _ in plan.gpus]
    counts[CLOUD] = max(sum(placement.held(CLOUD, period)[gpu] for gpu in gpus) for period in periods)
    return [
        f"the plan counts on {count:g} devices at {location}, the pool has {has[location]}"
        for location, count in counts.items()
        if count > has[location]
    ]
