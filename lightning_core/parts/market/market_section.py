"""The section ``market`` of a bundle, or of a pool's file: prices, spot policies, who quotes and who brings nodes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, NamedTuple

from lightning_core.bundle.values import exact_duration, read_spec
from lightning_core.core.durations import parse_duration
from lightning_core.core.jobs import Job
from lightning_core.core.names import did_you_mean
from lightning_core.parts.market.market_controller import check_budget
from lightning_core.parts.market.market_terms import NEEDS_JOBS, MarketTerms
from lightning_core.scheduler.settings import Settings
from lightning_core.storage.job_specs import SAVE_EVERY

# Keys that are commands. They may hold keys to a cloud, and are in no journal.
COMMANDS = ("quotes", "provision")
MARKET_KEYS = (*(field.name for field in fields(MarketTerms) if field.name != "quoted"), "budget", *COMMANDS)
# Keys of a recording, which a command that quotes the market stands in place of.
RECORDED = ("trace", "price", "start", "pool")
# Which of them are files, and which durations.
MARKET_FILES, MARKET_DURATIONS = ("trace", "history", "feedback"), ("interval", "start", "minimum_charge")
# Fraction of an interval between two checkpoints of a job that does not say how often to save.
SAVE_FRACTION = 0.1


class MarketSection(NamedTuple):
    """A market as a file describes it."""

    terms: dict[str, Any]
    """Arguments of :class:`MarketTerms`."""
    commands: dict[str, str]
    """``quotes``, the command that quotes the market, and ``provision``, what brings nodes; each only if given."""
    budget: float | None = None
    """Money that the pool may spend; None for any."""


def read_market(value: Any, folder: Path) -> MarketSection:
    """Read the section.

    Args:
        value: Path of a recording, or a mapping of the market's terms.
        folder: Folder to which paths are relative.

    Raises:
        ValueError: If it is neither, or the market cannot be read.
    """
    if isinstance(value, str):
        value = {"trace": value}
    if not isinstance(value, Mapping):
        raise ValueError(f"expected a recording or a mapping of {', '.join(MARKET_KEYS)}, got {value!r}")
    if unknown := [key for key in value if key not in MARKET_KEYS]:
        raise ValueError(f"unknown key {unknown[0]!r}{did_you_mean(str(unknown[0]), MARKET_KEYS)}")
    commands = {key: str(value[key]) for key in COMMANDS if value.get(key) is not None}
    if "provision" in commands:
        from lightning_core.parts.market.cloud import anchor_provision

        commands["provision"] = anchor_provision(commands["provision"], folder)
    if "quotes" in commands and (recorded := [key for key in RECORDED if key in value]):
        raise ValueError(f"{recorded[0]} is of a recorded market, and quotes names a command that quotes it")
    budget = None
    if value.get("budget") is not None:
        check_budget(value["budget"])
        budget = float(value["budget"])
    terms = _read_terms({key: one for key, one in value.items() if key not in (*COMMANDS, "budget")}, folder)
    if "quotes" in commands:
        terms["quoted"] = True
    try:
        MarketTerms(**terms).check()
    except OSError as error:
        key = next((name for name in MARKET_FILES if terms.get(name) == str(error.filename)), "trace")
        raise ValueError(f"{key} {terms[key]}: {error.strerror}") from None
    return MarketSection(terms, commands, budget)


def _read_terms(terms: dict[str, Any], folder: Path) -> dict[str, Any]:
    """Return terms with specs as text, absolute paths, and durations in seconds."""
    if isinstance(terms.get("policies"), list):
        terms["policies"] = [str(read_spec("spot policy", one)) for one in terms["policies"]]
    if isinstance(terms.get("forecaster"), Mapping):
        terms["forecaster"] = str(read_spec("forecaster", terms["forecaster"]))
    for name in MARKET_FILES:
        if terms.get(name):
            terms[name] = str((folder / str(terms[name])).resolve())
    for name in MARKET_DURATIONS:
        if terms.get(name):
            terms[name] = parse_duration(terms[name])
    return terms


def market_to_dict(section: MarketSection) -> dict[str, Any]:
    """Return the section as in a file; :func:`read_market` reads it."""
    body = {key: value for key, value in section.terms.items() if key != "quoted"} | section.commands
    if section.budget is not None:
        body["budget"] = section.budget
    if isinstance(body.get("policies"), tuple):
        body["policies"] = list(body["policies"])
    for name in MARKET_DURATIONS:
        if body.get(name):
            body[name] = exact_duration(body[name])
    return body


def rented(settings: Settings, section: MarketSection, jobs: Sequence[Job] | None = None) -> Settings:
    """Return settings under which the pool itself decides how many nodes it holds.

    Args:
        settings: Settings with the devices of such a pool.
        section: Its market.
        jobs: Jobs of its run; None if they are unknown.

    Raises:
        ValueError: If the step needs the number of jobs, and neither says it; or no job's deadline can be soft.
    """
    terms = MarketTerms(**section.terms)
    given = section.terms
    if terms.step == "paper" and terms.jobs is None:
        if jobs is None:
            raise ValueError(f"market step 'paper' {NEEDS_JOBS}")
        given = {**given, "jobs": len(jobs)}
    if terms.soft_deadlines and jobs is not None and not any(map(terms.is_soft, jobs)):
        got = ", ".join(sorted({str(job.on_miss) for job in jobs}))
        raise ValueError(f"market soft_deadlines needs a job with on_miss: continue, got {got}")
    arguments: dict[str, Any] = {
        "interval": terms.seconds, "policy": "", "kept_fraction": terms.kept_fraction, "save_every": save_every(terms),
        "forecaster": terms.forecaster, "minimum_charge": terms.minimum_charge, "terms": given,
    }  # fmt: skip
    if section.budget is not None:
        arguments["budget"] = section.budget
    return replace(settings, controllers={**settings.controllers, "market": arguments})


def save_every(terms: MarketTerms) -> float:
    """Return the seconds between two checkpoints of a job that does not say."""
    return min(SAVE_EVERY, SAVE_FRACTION * terms.seconds)
