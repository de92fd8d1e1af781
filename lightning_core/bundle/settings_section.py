"""The sections of a bundle file that become the scheduler's settings: policy, estimator, period, market."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

from lightning_core.bundle.pool_section import PoolSection, with_pool
from lightning_core.bundle.problems import Problems
from lightning_core.bundle.values import exact_duration
from lightning_core.controllers.market_terms import MarketTerms
from lightning_core.core.durations import parse_duration
from lightning_core.core.limits import shown
from lightning_core.core.names import did_you_mean
from lightning_core.core.specs import Spec, parse_spec
from lightning_core.scheduler.settings import Settings

MARKET_KEYS = tuple(field.name for field in fields(MarketTerms))
# Which of them are files, and which durations.
MARKET_FILES, MARKET_DURATIONS = ("trace", "history", "feedback"), ("interval", "start", "minimum_charge")


def read_settings(
    content: Mapping[str, Any], pool: PoolSection, folder: Path, problems: Problems, *, starts_pool: bool = True
) -> Settings | None:
    """Read the settings of the scheduler.

    Args:
        content: Content of the file.
        pool: Its pool.
        folder: Folder to which paths are relative.
        problems: Collector at the file.
        starts_pool: Whether the pool is started from this file. Jobs that are submitted to a running pool bring no
            class that its scheduler would import.

    Returns:
        The settings; None, with the problems added, if they are wrong.
    """
    default = Settings()
    period = problems.at("period").read(parse_duration, content["period"]) if "period" in content else default.period
    if not starts_pool:
        content = dict(content)
        for key in ("policy", "estimator"):
            if key in content and problems.at(key).read(_check_no_class_path, content[key]) is None:
                del content[key]  # nothing of it is imported
    under = problems.at("policy").read(lambda value: with_policy(default, value), content.get("policy", {}))
    settings = problems.at("estimator").read(
        lambda value: _with_estimator(under or default, value), content.get("estimator", {})
    )
    market = None
    if content.get("market") is not None:
        market = problems.at("market").read(lambda value: read_market(value, folder), content["market"])
    if under is None or settings is None or period is None:
        return None
    return with_pool(replace(settings, period=period, market=market), pool)


def _check_no_class_path(value: Any) -> Any:
    """Return a policy or an estimator if it is no class path.

    Raises:
        ValueError: If it is.
    """
    name = value if isinstance(value, str) else value.get("name", "") if isinstance(value, Mapping) else ""
    is_path = "." in str(name).partition(":")[0] or (isinstance(value, Mapping) and "class_path" in value)
    if is_path:
        raise ValueError(f"only who starts a pool may give it a class, got {shown(value)}; leave it out")
    return value


def with_policy(settings: Settings, policy: Any) -> Settings:
    """Return settings with another policy, and its own estimator unless the settings name one.

    Raises:
        ValueError: If the policy is unknown or an argument is out of range.
    """
    name, arguments = _read_spec("policy", policy, settings.policy)
    return replace(settings, policy=name, policy_args=arguments)


def _with_estimator(settings: Settings, estimator: Any) -> Settings:
    name, arguments = _read_spec("estimator", estimator)
    return replace(settings, estimator=name, estimator_args=arguments)


def _read_spec(kind: str, value: Any, default: str = "") -> Spec:
    """Read ``lara``, ``lara:order=edf``, ``{name: lara, order: edf}`` or ``{class_path: mine.Lara, init_args: {}}``."""
    if isinstance(value, str):
        return parse_spec(value, kind)
    if isinstance(value, Mapping) and "class_path" in value:
        given = value.get("init_args") or {}
        if unknown := value.keys() - {"class_path", "init_args"}:
            raise ValueError(f"beside class_path there is only init_args, got {shown(min(map(str, unknown)))}")
        if not isinstance(given, Mapping) or not isinstance(value["class_path"], str):
            raise ValueError(f"must be like {{class_path: package.Class, init_args: {{...}}}}, got {shown(value)}")
        return Spec(value["class_path"], {str(key): inner for key, inner in given.items()})
    if not isinstance(value, Mapping):
        raise ValueError(f"expected a name or a mapping with 'name', got {value!r}")
    arguments = {str(key): inner for key, inner in value.items()}
    return Spec(str(arguments.pop("name", default)), arguments)


def read_market(value: Any, folder: Path) -> dict[str, Any]:
    """Read the market.

    Args:
        value: Path of a recording, or a mapping of the market's terms.
        folder: Folder to which paths are relative.

    Returns:
        Arguments of :class:`MarketTerms`.

    Raises:
        ValueError: If it is neither, or the market cannot be read.
    """
    if isinstance(value, str):
        value = {"trace": value}
    if not isinstance(value, Mapping):
        raise ValueError(f"expected a recording or a mapping of {', '.join(MARKET_KEYS)}, got {value!r}")
    if unknown := [key for key in value if key not in MARKET_KEYS]:
        raise ValueError(f"unknown key {unknown[0]!r}{did_you_mean(str(unknown[0]), MARKET_KEYS)}")
    terms: dict[str, Any] = dict(value)
    if isinstance(terms.get("policies"), list):
        terms["policies"] = [str(_read_spec("spot policy", one)) for one in terms["policies"]]
    if isinstance(terms.get("forecaster"), Mapping):
        terms["forecaster"] = str(_read_spec("forecaster", terms["forecaster"]))
    for name in MARKET_FILES:
        if terms.get(name):
            terms[name] = str((folder / str(terms[name])).resolve())
    for name in MARKET_DURATIONS:
        if terms.get(name):
            terms[name] = parse_duration(terms[name])
    try:
        MarketTerms(**terms).check()
    except OSError as error:
        key = next((name for name in MARKET_FILES if terms.get(name) == str(error.filename)), "trace")
        raise ValueError(f"{key} {terms[key]}: {error.strerror}") from None
    return terms


def market_to_dict(market: Mapping[str, Any]) -> dict[str, Any]:
    """Return the terms of a market as in a bundle file."""
    body = dict(market)
    if isinstance(body.get("policies"), tuple):
        body["policies"] = list(body["policies"])
    for name in MARKET_DURATIONS:
        if body.get(name):
            body[name] = exact_duration(body[name])
    return body
