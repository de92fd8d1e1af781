"""The sections of a bundle file that become the scheduler's settings: policy, estimator, period."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from lightning_core.bundle.pool_section import PoolSection, with_pool
from lightning_core.bundle.problems import Problems
from lightning_core.bundle.values import read_spec
from lightning_core.core.durations import parse_duration
from lightning_core.core.limits import shown
from lightning_core.scheduler.settings import Settings


def read_settings(
    content: Mapping[str, Any], pool: PoolSection, problems: Problems, *, starts_pool: bool = True
) -> Settings | None:
    """Read the settings of the scheduler.

    Args:
        content: Content of the file.
        pool: Its pool.
        problems: Collector at the file.
        starts_pool: Whether the pool is started from this file. Jobs that are submitted to a running pool bring no
            class that its scheduler would import.

    Returns:
        The settings, without a supply of nodes; None, with the problems added, if they are wrong.
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
    if under is None or settings is None or period is None:
        return None
    timed = replace(settings, period=period)
    return problems.at("pool").read(lambda section: with_pool(timed, section), pool)  # its parts may not fit the pool


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
    name, arguments = read_spec("policy", policy, settings.policy)
    return replace(settings, policy=name, policy_args=arguments)


def _with_estimator(settings: Settings, estimator: Any) -> Settings:
    name, arguments = read_spec("estimator", estimator)
    return replace(settings, estimator=name, estimator_args=arguments)
