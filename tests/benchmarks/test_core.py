"""The rows of the benchmark of policies: who has earlier runs and learning rates."""

from __future__ import annotations

from benchmarks.policies.core import NO_RATES, OURS, WITHOUT, WRONG, contenders, with_history, with_schedule


def test_only_our_rows_have_earlier_runs_and_learning_rates() -> None:
    rows = with_schedule(with_history(contenders(), 3))
    assert {name for name, row in rows.items() if row.schedule} == {OURS, WITHOUT, WRONG}
    assert {name for name, row in rows.items() if row.history} == {OURS, WRONG, NO_RATES}
    assert {name for name, row in rows.items() if row.mismatch.task} == {WRONG}
    assert contenders().keys() == rows.keys() - {WITHOUT, WRONG, NO_RATES}
