"""A cell of a notebook as a job: what trains in it takes part, and nothing of that is left when the cell ends.

A Trainer or a Fabric that the cell makes joins by the environment (:mod:`lightning_core.autojoin`), as does all else
that reads its job there, such as ``track()``. A plain loop finds its run in a variable.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, MutableMapping
from contextlib import contextmanager
from typing import Any, TypeVar

from lightning_core.agent.environment import read
from lightning_core.agent.job_record import JobRecord, notebook_card
from lightning_core.agent.outcome import summary_line
from lightning_core.agent.participant import collected_records
from lightning_core.integrations.plain import closing_runs, track
from lightning_core.variables import OF_A_JOB, PREFIX

T = TypeVar("T")

# Variable of the notebook in which a plain loop finds its run.
VARIABLE = "run"
_MISSING = object()


class CellJob:
    """The job of a cell.

    Args:
        name: Name of the job.
        terms: Its other terms, each as a text by the name of its environment variable, such as ``{"DEADLINE": "2h"}``.

    Raises:
        ValueError: If a term is missing or invalid; the message has the rule and the value.
    """

    def __init__(self, name: str, terms: Mapping[str, str]) -> None:
        self._name = name
        self._variables = {PREFIX + key: text for key, text in {"JOB": name, **terms}.items()}
        told = read(self._variables)
        told.pop("on_hold", None)  # a plain loop has not said what there is to move off the device
        self._run = track(**told)
        self._records: list[JobRecord] = []

    def do(self, cell: Callable[[], T], variables: MutableMapping[str, Any]) -> T:
        """Do what the cell does, and return what that returns.

        Args:
            cell: Function that does it.
            variables: Variables of the notebook.
        """
        __tracebackhide__ = True  # IPython leaves this frame out of tracebacks
        with (
            collected_records() as self._records, _environment(self._variables), _variable(variables, self._run),
            closing_runs(), self._run,
        ):  # fmt: skip
            return cell()

    @property
    def outcome(self) -> CellOutcome | None:
        """CellOutcome of the newest training of the cell; None if none took part."""
        return CellOutcome(self._records[-1]) if self._records else None


class CellOutcome:
    """How a training of a cell went, as a notebook shows it.

    Args:
        record: Record of its job.
    """

    def __init__(self, record: JobRecord) -> None:
        self._record = record

    def _repr_html_(self) -> str:
        """Return a card with verdict and curve."""
        record = self._record
        return notebook_card(record, record.job, record.job_forecast, record.best_model, over=True)

    def __repr__(self) -> str:
        """Return the outcome in a line, for a terminal."""
        return summary_line(self._record.job.name, self._record.job_forecast)


@contextmanager
def _environment(variables: Mapping[str, str]) -> Iterator[None]:
    """Have the variables of one job in the environment, and none of another."""
    names = {PREFIX + name for name in ("JOB", *OF_A_JOB)} | set(variables)
    before = {name: os.environ.get(name) for name in names}
    try:
        _set({name: variables.get(name) for name in names})
        yield
    finally:
        _set(before)


def _set(variables: Mapping[str, str | None]) -> None:
    for name, text in variables.items():
        if text is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = text


@contextmanager
def _variable(variables: MutableMapping[str, Any], value: object) -> Iterator[None]:
    """Have a value in the variable for plain loops; one that the cell itself gives to the variable stays."""
    before = variables.get(VARIABLE, _MISSING)
    try:
        variables[VARIABLE] = value
        yield
    finally:
        if variables.get(VARIABLE, value) is value:
            variables.pop(VARIABLE, None)
            if before is not _MISSING:
                variables[VARIABLE] = before
