"""Policies play a batch of jobs through their markets, slot by slot, and a ledger is kept for each.

What a policy asks for is made possible, the safety net looks at it, and nobody gets more than ends its job in the slot
(:mod:`.choices`). Several policies play side by side, each as if it were alone: what they have in common, such as the
tables of :mod:`.windows`, is made once a slot.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from lightning_core.market.choices import Choices, speed_of
from lightning_core.market.model import EXACT, JobBatch, Ledger, Overhead, slots_after, value_at
from lightning_core.market.views import Forecast, Foresight, Seen, SpotPolicy


def play(
    policies: Sequence[SpotPolicy],
    batch: JobBatch,
    foresight: Foresight,
    *,
    guarded: bool = True,
    overhead: Overhead = "total",
    gone: float = 0.0,
    held: tuple[int, int] = (0, 0),
) -> list[Ledger]:
    """Has policies decide for each job of a batch, from its first slot to its deadline.

    Args:
        policies: who decides, each for itself.
        batch: the jobs.
        foresight: what they are told of the slots to come.
        guarded: whether the safety net is there.
        overhead: what costs a part of a slot: a change of the number of instances, or any that is launched.
        gone: slots at full speed that it costs if there are fewer spot instances than were held in the slot before, of
            which what a change of the number costs in that slot is a part.
        held: spot and on-demand instances that each job has as it begins.

    Returns:
        A ledger for each policy.

    Example::

        >>> from lightning_core.market import JobBatch, Foreseen, LastValue, Market, SpotJob
        >>> from lightning_core.market.policies import OnDemand
        >>> market = Market([0.4] * 10, [4] * 10)
        >>> batch = JobBatch([SpotJob(work=80.0, deadline=10)], market, [0])
        >>> [ledger] = play([OnDemand()], batch, Foreseen(LastValue()))
        >>> ledger.cost.tolist(), ledger.utility.tolist(), ledger.on_time.tolist()
        ([81.0], [39.0], [True])
    """
    several, jobs, slots = len(policies), len(batch), batch.slots
    horizon = max(policy.horizon for policy in policies)
    rows, planned = batch.only(list(range(jobs)) * several), batch.with_reserve()
    shape = several * jobs, slots
    spot, on_demand = np.zeros((2, *shape), np.int64)
    part, progress, paid = np.ones(shape), np.zeros(shape), np.zeros(shape)
    has, done = np.repeat(np.array(held, np.int64)[:, None], several * jobs, 1), np.zeros(several * jobs)
    for slot in range(slots):
        forecast = foresight.look(batch, slot, horizon)
        by_policy = done.reshape(several, jobs)
        lowest, highest = by_policy.min(0), by_policy.max(0)
        wanted = np.zeros((2, several * jobs), np.int64)
        for number, policy in enumerate(policies):
            own = slice(number * jobs, (number + 1) * jobs)
            wanted[:, own] = policy.decide(
                Seen(planned, slot, done[own], has[0, own], has[1, own], forecast, lowest, highest)
            )
        now = Forecast(np.tile(forecast.prices[:, :1], (several, 1)), np.tile(forecast.counts[:, :1], (several, 1)))
        choices = Choices(Seen(rows, slot, done, has[0], has[1], now, done, done), overhead)
        open_ = (done < rows.work - EXACT) & (slot < rows.deadline)
        chosen = np.where(open_, choices.choose(wanted[0], wanted[1], guarded=guarded), 0)
        left = np.where(open_, choices.part_left(chosen[0], chosen[1]), 1.0)
        speed = speed_of(rows, chosen.sum(0))
        lost = np.where(open_ & choices.fewer, np.maximum(gone * rows.fastest - (1.0 - left) * speed, 0.0), 0.0)
        done = np.clip(done + left * speed - lost, 0.0, rows.work)
        spot[:, slot], on_demand[:, slot] = chosen
        part[:, slot], progress[:, slot] = left, done
        paid[:, slot] = chosen[0] * rows.price[:, slot] + chosen[1] * rows.on_demand
        has = np.where(slot < rows.deadline, chosen, has)  # at its own deadline it goes on with what it has
    kept = has[1] if overhead == "launches" else has.sum(0)  # there, spot instances are not replaced for nothing
    late = slots_after(rows.work - done, kept == rows.most, rows.fastest, rows.up)
    cost = paid.sum(1) + late * rows.most * rows.on_demand
    utility = value_at(rows.deadline + late, rows.deadline, rows.value, rows.grace) - cost
    ledger = Ledger(spot, on_demand, part, progress * rows.units[:, None], paid, late, cost, utility)
    return [ledger.of(slice(at, at + jobs)) for at in range(0, several * jobs, jobs)]
