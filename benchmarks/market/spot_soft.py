"""What a deadline that may be passed at a price saves: the same jobs with a soft deadline and with a hard one.

The paper's job, whose value falls to 0 at three times the deadline, at several prices of an interval of lateness. A job
with a hard deadline is kept in time; with a soft one it may be late, and the safety net keeps the end of the grace.
Both are worth the same at any time, so the difference of value less cost is what the soft one is worth to its owner.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from benchmarks.common import Figures, Size, table
from benchmarks.market.spot_traces import DEADLINE, Trace
from lightning_core.core.arrays import FloatArray, IntArray
from lightning_core.parts.market.backtest import backtest
from lightning_core.parts.market.forecasters import LastValue, MarketForecaster
from lightning_core.parts.market.job_batch import JobBatch
from lightning_core.parts.market.observation import SpotPolicy
from lightning_core.parts.market.spot_job import SpotJob, end_of_grace
from lightning_core.parts.market.spot_policies import Ahap, SemiMarkov

GRACE, OURS = 3.0, "semi-markov"
# What an interval of lateness costs; a job has 12 nodes at most, for 12 an interval on demand. The last one is shown.
PRICES = (6.0, 3.0, 1.0)
TOGETHER = 2
STARTS: Mapping[Size, int] = {"quick": 24, "default": 60, "full": 200}


def soft_figures(traces: Sequence[Trace], size: Size) -> Figures:
    """Print what soft deadlines save on each market, and return the means over markets at the lowest price."""
    starts, saved, gained, errors, late = STARTS[size], list[float](), list[float](), list[float](), list[float]()
    end = end_of_grace(DEADLINE, GRACE)
    for trace in traces:
        draw = np.random.default_rng(0).integers(0, len(trace.market) - end + 1, starts).tolist()
        hard, rows = _play(trace, trace.job(), draw), []
        assert not any(one.late.any() for one in hard.values()), "hard deadlines are kept, so no value is lost"
        for price in PRICES:
            job = replace(trace.job(), value=price * (end - DEADLINE), grace=GRACE).softened()
            for name, ledger in _play(trace, job, draw).items():
                assert (ledger.late <= end - DEADLINE).all(), "all are done by the end of the grace"
                lost, before = job.value - ledger.utility - ledger.cost, hard[name].cost
                more = before - ledger.cost - lost
                error = float(more.std(ddof=1) / starts**0.5)
                rows.append([price, name, float(before.mean()), float(ledger.cost.mean()),
                             100 * float((ledger.late > 0).mean()), float(ledger.late.mean()), float(lost.mean()),
                             f"{more.mean():+.2f} ± {error:.2f}"])  # fmt: skip
                if name == OURS and price == PRICES[-1]:
                    saved.append(100 * float(1 - ledger.cost.mean() / before.mean()))
                    gained.append(100 * float(more.mean() / before.mean()))
                    errors.append(float(more.mean()) / error if error else 0.0)
                    late.append(float(ledger.late.mean()))
        print(f"\n{trace.name}: {starts} starts, forecast: last value; soft deadlines against hard ones")
        table(["price", "policy", "cost, hard", "cost, soft", "late, %", "intervals late", "value lost",
               "value less cost, soft over hard"], rows)  # fmt: skip
    return {
        "soft_cost_saved": float(np.mean(saved)),
        "soft_intervals_late": float(np.mean(late)),
        "soft_gained": float(np.mean(gained)),
        "soft_gained_least_se": min(errors),
    }


class _Played(NamedTuple):
    """Jobs that were played; columns of shape ``(starts,)``."""

    cost: FloatArray
    utility: FloatArray
    late: IntArray


def _play(trace: Trace, job: SpotJob, starts: Sequence[int]) -> dict[str, _Played]:
    """Play a job from each start; a few at a time, because plans of many side by side are made anew more often."""
    found: dict[str, list[_Played]] = {}
    for at in range(0, len(starts), TOGETHER):
        policies: dict[str, SpotPolicy] = {OURS: SemiMarkov(), "ahap:omega=5": Ahap(5)}
        some = starts[at : at + TOGETHER]
        batch = JobBatch([job] * len(some), trace.market, some)
        ledgers = backtest(list(policies.values()), batch, MarketForecaster(LastValue()))
        for name, one in zip(policies, ledgers, strict=True):
            found.setdefault(name, []).append(_Played(one.cost, one.utility, one.late))
    return {name: _Played(*map(np.concatenate, zip(*several, strict=True))) for name, several in found.items()}
