"""What a deadline that may be passed at a price saves: the same jobs with a soft deadline and with a hard one.

The paper's job and value, which falls to 0 at a multiple of the deadline, its grace. A job with a hard deadline is kept
in time; with a soft one it may be late, and the safety net keeps the end of the grace. Both are worth the same at any
time, so that the difference of their utilities, value less cost, is what the soft one is worth to its owner.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from benchmarks.common import Figures, Size, table
from benchmarks.market.spot_traces import DEADLINE, Trace
from lightning_core.parts.market.backtest import backtest
from lightning_core.parts.market.forecasters import LastValue, MarketForecaster
from lightning_core.parts.market.job_batch import JobBatch
from lightning_core.parts.market.ledger import Ledger
from lightning_core.parts.market.observation import SpotPolicy
from lightning_core.parts.market.spot_job import SpotJob, end_of_grace
from lightning_core.parts.market.spot_policies import Ahap, MaxSpot, SemiMarkov, UniformProgress

GRACES, OURS = (1.5, 3.0), "semi-markov"
# The grace of the figures on the page: at 1.5 an interval of lateness costs more than on-demand nodes do in it.
SHOWN = 3.0
STARTS: Mapping[Size, int] = {"quick": 24, "default": 60, "full": 200}


def soft_figures(traces: Sequence[Trace], size: Size) -> Figures:
    """Print what soft deadlines save on each market, and return the means over markets at one grace."""
    starts, saved, gained, errors, late = STARTS[size], list[float](), list[float](), list[float](), list[float]()
    for trace in traces:
        last = len(trace.market) - end_of_grace(DEADLINE, max(GRACES))
        draw = np.random.default_rng(0).integers(0, last + 1, starts).tolist()
        hard, rows = _play(trace, trace.job(), draw), []
        assert all(ledger.on_time.all() for ledger in hard.values()), "hard deadlines are kept, so no value is lost"
        for grace in GRACES:
            job = replace(trace.job(), grace=grace).softened()
            for name, other in _play(trace, job, draw).items():
                assert (other.late <= job.deadline - DEADLINE).all(), "all are done by the end of the grace"
                one = hard[name]
                more = other.utility - one.utility
                error = float(more.std(ddof=1) / starts**0.5)
                cost = float(one.cost.mean()), float(other.cost.mean())
                lost = job.value - float((other.utility + other.cost).mean())
                rows.append([grace, name, *cost, 100 * float((~other.on_time).mean()), float(other.late.mean()), lost,
                             f"{more.mean():+.2f} ± {error:.2f}"])  # fmt: skip
                if name == OURS and grace == SHOWN:
                    saved.append(100 * (1 - cost[1] / cost[0]))
                    gained.append(100 * float(more.mean()) / cost[0])
                    errors.append(float(more.mean()) / error if error else 0.0)
                    late.append(float(other.late.mean()))
        print(f"\n{trace.name}: {starts} starts; value {trace.job().value:g}; soft deadlines against hard ones")
        table(["grace", "policy", "cost, hard", "cost, soft", "late, %", "intervals late", "value lost",
               "value less cost, soft over hard"], rows)  # fmt: skip
    return {
        "soft_cost_saved": float(np.mean(saved)),
        "soft_intervals_late": float(np.mean(late)),
        "soft_gained": float(np.mean(gained)),
        "soft_gained_least_se": min(errors),
    }


def _play(trace: Trace, job: SpotJob, starts: Sequence[int]) -> dict[str, Ledger]:
    policies: dict[str, SpotPolicy] = {
        OURS: SemiMarkov(), "ahap:omega=5": Ahap(5), "uniform-progress": UniformProgress(), "max-spot": MaxSpot()
    }  # fmt: skip
    batch = JobBatch([job] * len(starts), trace.market, starts)
    played = backtest(list(policies.values()), batch, MarketForecaster(LastValue()))
    return dict(zip(policies, played, strict=True))
