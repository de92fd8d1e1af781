"""The jobs of a pool as a data frame."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import fields
from typing import TYPE_CHECKING, Any

from lightning_core.core.answers import JobStatus
from lightning_core.core.reasons import Reason
from lightning_core.core.targets import Target

if TYPE_CHECKING:
    import pandas as pd

LIKELY_ENDS = ("early_finish", "finish", "late_finish")


def frame_of(jobs: Iterable[JobStatus]) -> pd.DataFrame:
    """Return one row for each job; columns are the fields of its status, those with words as text.

    Raises:
        ImportError: If pandas is not installed.
    """
    try:
        import pandas as pd
    except ImportError:
        raise ImportError("to_frame() needs pandas, which is not installed; run pip install pandas") from None
    columns = [name for field in fields(JobStatus) for name in _columns(field.name, None)]
    return pd.DataFrame([_row(job) for job in jobs], columns=columns)


def _row(job: JobStatus) -> dict[str, Any]:
    return {
        name: value for field in fields(job) for name, value in _columns(field.name, getattr(job, field.name)).items()
    }


def _columns(name: str, value: Any) -> dict[str, Any]:
    if name == "finish":
        return dict(zip(LIKELY_ENDS, value or (None, None, None), strict=True))
    if isinstance(value, Reason | Target):
        return {name: str(value)}
    return {name: value}
