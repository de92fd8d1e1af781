"""The content of a bundle file: the sections that all jobs share are read, the jobs are found but not yet read."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from lightning_core.bundle.config_section import CONFIG_KEYS
from lightning_core.bundle.job_section import REQUIRED_TERMS
from lightning_core.bundle.on_verdict import read_on_verdict
from lightning_core.bundle.pool_section import ExistingPool, Kind, read_pool
from lightning_core.bundle.problems import BundleError, Problems
from lightning_core.bundle.settings_section import read_settings
from lightning_core.core.limits import MAX_JOBS
from lightning_core.core.parts import brought, names_of
from lightning_core.core.supplies import Supply
from lightning_core.scheduler.settings import Settings

BUNDLE_KEYS = ("pool", "policy", "estimator", "period", "on_verdict", "allow_import", "jobs")


class RawJob(NamedTuple):
    """A job of a bundle file, not yet read."""

    name: Any
    section: Any
    problems: Problems
    """Collector at the job."""


class BundleContent(NamedTuple):
    """The content of a bundle file, its jobs not yet read."""

    jobs: list[RawJob]
    kind: Kind
    devices: int
    """Number of devices; the maximum if the file's number is wrong."""
    settings: Settings | None
    """Settings of the scheduler; None, with the problems added, if they are wrong."""
    on_verdict: dict[str, Any]
    allow_import: tuple[str, ...] | None
    supply: Supply | None
    """Where its nodes come from; None for devices that stay."""


def read_bundle_content(
    content: Any, folder: Path, problems: Problems, existing: ExistingPool | None = None
) -> BundleContent:
    """Read a bundle file, or a file of one job, except for the jobs.

    Args:
        content: Content of the file.
        folder: Folder to which paths are relative.
        problems: Collector at the file.
        existing: Pool that is to take the jobs, if it is running already.

    Raises:
        BundleError: If the content is no mapping.
    """
    if not isinstance(content, Mapping):
        problems.add(f"expected a mapping with 'jobs', got {type(content).__name__}")
        raise BundleError(problems.messages)
    if (config := _lightning_config(content, problems)) is not None:
        problems.add(config)
        raise BundleError(problems.messages)
    if "jobs" not in content and content.keys() & {"deadline", "target"}:
        section = {key: value for key, value in content.items() if key != "name"}
        jobs = [RawJob(content.get("name", Path(problems.position.name).stem), section, problems)]
        content = {}
    else:
        jobs = _find_jobs(content, problems)
    pool = read_pool(content.get("pool"), problems.at("pool"), existing)
    settings = read_settings(content, pool, problems, starts_pool=existing is None)
    supply = read_supply(content, folder, problems)
    if supply is not None and existing is not None:
        name = next(name for name in supply_keys() if name in content)
        problems.at(name).add("is for a pool of its own, with `run --own` or `up --config`; leave it out")
    on_verdict = read_on_verdict(content.get("on_verdict"), folder, problems.at("on_verdict"))
    allow_import = None
    if content.get("allow_import") is not None:
        allow_import = problems.at("allow_import").read(read_allow_import, content["allow_import"])
    return BundleContent(jobs, pool.kind, pool.devices, settings, on_verdict, allow_import, supply)


def supply_keys() -> list[str]:
    """Return the keys of the sections that say where nodes come from."""
    return names_of("supplies")


def read_supply(content: Mapping[Any, Any], folder: Path, problems: Problems) -> Supply | None:
    """Read the section that says where the nodes of a pool come from; None if there is none, or it is wrong.

    Args:
        content: Content of the file.
        folder: Folder to which paths are relative.
        problems: Collector at the file.
    """
    given = [name for name in supply_keys() if content.get(name) is not None]
    for other in given[1:]:
        problems.at(other).add(f"nodes come from {given[0]} already; leave one of them out")
    if not given:
        return None
    found = brought("supplies", given[0])
    assert found is not None  # it is among the names
    made: Supply | None = problems.at(given[0]).read(lambda value: found[0].read(value, folder), content[given[0]])
    return made


def _lightning_config(content: Mapping[Any, Any], problems: Problems) -> str | None:
    """Return what is wrong with a file whose keys are those of a LightningCLI config; None for another file."""
    keys = {str(key) for key in content}
    if not keys <= {*CONFIG_KEYS, "fit"} or not keys & {"model", "trainer", "fit"}:
        return None
    terms = ", ".join(f"{key}: {example}" for key, example in ({"deadline": "1h30m"} | REQUIRED_TERMS).items())
    return (
        f"this looks like a LightningCLI config (keys {', '.join(sorted(keys))}); a bundle names it, under "
        f"jobs: {{NAME: {{config: {Path(problems.position.name).name}, {terms}}}}}"
    )


def _find_jobs(content: Mapping[str, Any], problems: Problems) -> list[RawJob]:
    problems.check_keys(content, (*BUNDLE_KEYS, *supply_keys()))
    jobs = content.get("jobs")
    if not isinstance(jobs, Mapping) or not jobs:
        problems.at("jobs").add(f"expected a mapping of at least one job, got {jobs!r}")
        return []
    if len(jobs) > MAX_JOBS:
        problems.at("jobs").add(f"must be at most {MAX_JOBS} jobs, got {len(jobs)}")
        return []
    return [RawJob(name, section, problems.at("jobs", str(name))) for name, section in jobs.items()]


def read_allow_import(value: Any) -> tuple[str, ...]:
    """Read the modules, packages and classes that class paths may name, as in ``[mine, lightning, torch.optim]``.

    Raises:
        ValueError: If it is no list of dotted names.
    """
    names = value if isinstance(value, list | tuple) else [value]
    for name in names:
        if not isinstance(name, str) or not all(part.isidentifier() for part in name.split(".")):
            raise ValueError(f"must be a list of modules, such as [mine, lightning, torch.optim], got {name!r}")
        if name.split(".")[0] == "jsonargparse":  # decides what may be imported
            raise ValueError(f"{name} cannot be allowed: it reads the configs")
    return tuple(names)
