"""Accounts of the machine: the identity of a Unix socket's peer, from the kernel."""

from __future__ import annotations

import os
import pwd
from functools import cache
from typing import Any, NamedTuple

from lightning_core.core.names import is_person
from lightning_core.node.processes import peer_of, user_of
from lightning_core.server.access.groups import GroupSocket
from lightning_core.server.access.people import ALL_RIGHTS, Person


class Peer(NamedTuple):
    """The peer of a connection."""

    pid: int
    """Process that opened it; 0 if it is not visible from here."""
    person: Person
    """Its account."""
    speaks_for_others: bool = False
    """Whether its requests may name another user, on whose behalf they are made."""
    of_group: bool = False
    """Whether it connected through a group's socket: its account shares one budget of requests, and it cannot join."""


def peer_at(connection: Any, group: GroupSocket | None) -> Peer:
    """Return the peer of a Unix socket.

    The account of this process may do everything, and speak for others. Another one that could open a socket that is
    the user's alone is root, which can do everything anyway.

    Args:
        connection: The socket.
        group: Group whose socket it is; None for one that is the user's alone.
    """
    user = user_of(connection)
    ours = user == os.geteuid()
    rights = ALL_RIGHTS if ours or group is None else group.rights
    return Peer(peer_of(connection), Person(account_of(user), rights), ours, not ours and group is not None)


@cache
def account_of(user: int) -> str:
    """Return the name of the account with a user id; ``uid1000`` and the like where it has none that names a person."""
    try:
        name = pwd.getpwuid(user).pw_name
    except KeyError:
        name = ""
    return name if is_person(name) else f"uid{user}"
