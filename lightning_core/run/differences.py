"""Differences between two bundles, as lines for the user who edited one."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from lightning_core.bundle.bundle_file import BundleSpec
from lightning_core.bundle.job_spec import SUBMITTED
from lightning_core.bundle.scripts import SCRIPT, without_secrets
from lightning_core.core.names import is_secret

_ABSENT = object()


def differences(old: BundleSpec, new: BundleSpec) -> list[str]:
    """Return a line for each difference, such as ``jobs.a.model.init_args.lr: 0.1 -> 0.2`` or ``jobs.b: new``."""
    before, after = old.to_dict(), new.to_dict()
    jobs_before, jobs_after = before.pop("jobs"), after.pop("jobs")
    for job in (*jobs_before.values(), *jobs_after.values()):
        job.pop(SUBMITTED, None)  # not written by the user
    lines = list(_differences(before, after, ""))
    for name in {**jobs_before, **jobs_after}:
        if name not in jobs_after:
            lines.append(f"jobs.{name}: removed")
        elif name not in jobs_before:
            lines.append(f"jobs.{name}: new")
        else:
            lines += _differences(jobs_before[name], jobs_after[name], f"jobs.{name}")
    return lines


def _differences(old: Any, new: Any, path: str) -> Iterator[str]:
    if isinstance(old, Mapping) and isinstance(new, Mapping):
        for key in {**old, **new}:
            inner = f"{path}.{key}" if path else str(key)
            yield from _differences(old.get(key, _ABSENT), new.get(key, _ABSENT), inner)
    elif isinstance(old, list | tuple) and isinstance(new, list | tuple) and len(old) == len(new):
        for index, (one, other) in enumerate(zip(old, new, strict=True)):
            yield from _differences(one, other, f"{path}[{index}]")
    elif repr(old) != repr(new):  # unlike ==, tells True from 1, and takes NaN for equal to NaN
        secret = is_secret(re.split(r"[.\[\]]", path))
        text = _text_of_script if path.endswith(f".{SCRIPT}") else _text
        yield f"{path}: changed (not shown here)" if secret else f"{path}: {text(old)} -> {text(new)}"


def _text(value: Any) -> str:
    return "not set" if value is _ABSENT else str(value)


def _text_of_script(value: Any) -> str:
    return without_secrets(value) if isinstance(value, str) else _text(value)
