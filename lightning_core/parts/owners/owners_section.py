"""What owners may have, as it stands in the section ``pool`` of a file."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from lightning_core.bundle.problems import Problems
from lightning_core.bundle.values import exact_duration
from lightning_core.core.durations import parse_duration
from lightning_core.core.limits import MAX_DEVICES, shown
from lightning_core.core.names import check_person
from lightning_core.core.validation import positive_int, read_number
from lightning_core.parts.owners.owner_terms import OTHERS, OwnerTerms, check_quotas, owner_terms


def read_owners(section: Any, problems: Problems, devices: int | None) -> dict[str, dict[str, Any]]:
    """Read what each owner of jobs may have: ``{ann: {devices: 2}, "*": {device_hours: 100, per: 7d}}``.

    Args:
        section: Value in the file.
        problems: Collector at the section.
        devices: Devices of the pool; None if their number is wrong.

    Returns:
        Arguments of :class:`~lightning_core.parts.owners.owner_terms.OwnerTerms` by the name of the owner.
    """
    if not isinstance(section, Mapping) or not section:
        problems.add(f"expected a mapping of owners, or '*' for all others, to {_OWNER_KEYS}, got {shown(section)}")
        return {}
    owners, before = dict[str, dict[str, Any]](), len(problems.messages)
    for name, given in section.items():
        at = problems.at(str(name))
        if name != OTHERS:
            at.read(check_person, name)
        if not isinstance(given, Mapping):
            at.add(f"expected a mapping of {_OWNER_KEYS}, got {shown(given)}")
            continue
        at.check_keys(given, _OWNER_TERMS)
        read = {key: at.at(key).read(parse, given[key]) for key, parse in _OWNER_TERMS.items() if key in given}
        owners[str(name)] = {key: value for key, value in read.items() if value is not None}
        if len(read) == len(owners[str(name)]):
            at.read(lambda terms: OwnerTerms(**terms), read)
    if len(problems.messages) == before:
        problems.read(lambda terms: check_quotas(owner_terms(terms), devices or MAX_DEVICES), owners)
    return owners if len(problems.messages) == before else {}


def _read_quota(value: Any) -> int:
    return 0 if value == 0 and not isinstance(value, bool) else positive_int(value, MAX_DEVICES)


_OWNER_TERMS: dict[str, Callable[[Any], Any]] = {
    "weight": read_number, "devices": _read_quota, "max_devices": partial(positive_int, maximum=MAX_DEVICES),
    "device_hours": read_number, "per": parse_duration,
}  # fmt: skip
_OWNER_KEYS = ", ".join(_OWNER_TERMS)


def owners_section(owners: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Return the terms as in a file; :func:`read_owners` reads them."""
    return {
        name: {key: exact_duration(value) if key == "per" and value is not None else value
               for key, value in terms.items()}
        for name, terms in owners.items()
    }  # fmt: skip
