"""The names of accounts of this machine."""

from __future__ import annotations

import pwd
from functools import cache

from lightning_core.core.names import is_person


@cache
def account_of(user: int) -> str:
    """Return the name of the account with a user id; ``uid1000`` and the like where it has none that names a person."""
    try:
        name = pwd.getpwuid(user).pw_name
    except KeyError:
        name = ""
    return name if is_person(name) else f"uid{user}"
