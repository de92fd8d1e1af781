"""The sections of a bundle file that become the scheduler's settings: policy, estimator, period, market."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

from lightning_core.bundle.pool_section import PoolSection, with_pool
from lightning_core.bundle.problems import Problems
from lightning_core.bundle.values import exact_duration
from lightning_core.control.market_terms import MarketTerms
from lightning_core.core.durations import parse_duration
from lightning_core.core.names import did_you_mean
from lightning_core.scheduler.settings import Settings

MARKET_KEYS = tuple(field.name for field in fields(MarketTerms))


def read_settings(content: Mapping[str, Any], pool: PoolSection, folder: Path, problems: Problems) -> Settings | None:
    """Read the settings of the scheduler.

    Args:
        content: Content of the file.
        pool: Its pool.
        folder: Folder to which paths are relative.
        problems: Collector at the file.

    Returns:
        The settings; None, with the problems added, if they are wrong.
    """
    default = Settings()
    period = problems.at("period").read(parse_duration, content["period"]) if "period" in content else default.period
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


def parse_policy(text: str) -> dict[str, Any]:
    """Parse a policy as written on a command line.

    Raises:
        ValueError: If it does not have that form.

    Example::

        >>> parse_policy("lara:order=edf,explore=5")
        {'name': 'lara', 'order': 'edf', 'explore': 5}
        >>> parse_policy("laira:look_ahead=false,gamma=0.95")
        {'name': 'laira', 'look_ahead': False, 'gamma': 0.95}
    """
    name, _, rest = text.partition(":")
    policy: dict[str, Any] = {"name": name}
    for argument in filter(None, rest.split(",")):
        key, equals, value = argument.partition("=")
        if not (key and equals and value):
            raise ValueError(f"policy must be NAME or NAME:KEY=VALUE,..., got {text!r}")
        policy[key] = _parse_scalar(value)
    return policy


def _parse_scalar(text: str) -> int | float | bool | str:
    """Parse a value as YAML would."""
    if text in ("true", "false"):
        return text == "true"
    for parse in (int, float):
        try:
            return parse(text)
        except ValueError:
            pass
    return text


def with_policy(settings: Settings, policy: Any) -> Settings:
    """Return settings with another policy, and its own estimator unless the settings name one.

    Raises:
        ValueError: If the policy is unknown or an argument is out of range.
    """
    name, args = _name_and_arguments(policy, settings.policy)
    return replace(settings, policy=name, policy_args=args)


def _with_estimator(settings: Settings, estimator: Any) -> Settings:
    name, args = _name_and_arguments(estimator, "")
    return replace(settings, estimator=name, estimator_args=args)


def _name_and_arguments(value: Any, default: str) -> tuple[str, dict[str, Any]]:
    """Read ``lara`` or ``{name: lara, order: edf}``."""
    if isinstance(value, str):
        return value, {}
    if not isinstance(value, Mapping):
        raise ValueError(f"expected a name or a mapping with 'name', got {value!r}")
    args = {str(key): inner for key, inner in value.items()}
    return str(args.pop("name", default)), args


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
    if terms.get("trace"):
        terms["trace"] = str((folder / str(terms["trace"])).resolve())
    if terms.get("interval") is not None:
        terms["interval"] = parse_duration(terms["interval"])
    try:
        MarketTerms(**terms).market()
    except OSError as error:
        raise ValueError(f"trace {terms['trace']}: {error.strerror}") from None
    return terms


def market_to_dict(market: Mapping[str, Any]) -> dict[str, Any]:
    """Return the terms of a market as in a bundle file."""
    body = dict(market)
    if "policies" in body:
        body["policies"] = list(body["policies"])
    if body.get("interval") is not None:
        body["interval"] = exact_duration(body["interval"])
    return body
