"""Options of ``up`` that open a pool to a group of the machine."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from lightning_core.server.access.groups import GroupSocket, group_socket
from lightning_core.server.access.people import Right, rights_of

DEFAULT_RIGHTS = "see"


def add_group(parser: argparse.ArgumentParser) -> None:
    """Add the options."""
    parser.add_argument("--group", metavar="NAME", help="group of this machine whose members may use the pool")
    folder = "with --group: folder of their socket, a new one or that of an earlier pool"
    parser.add_argument("--group-folder", type=Path, metavar="DIR", help=folder)
    rights = f"with --group: what they may do: some of {','.join(Right)} (default {DEFAULT_RIGHTS})"
    parser.add_argument("--group-may", metavar="RIGHTS", help=rights)


def group_of(arguments: argparse.Namespace) -> GroupSocket | None:
    """Return the socket of the group that the options name; None if they name none.

    Raises:
        ValueError: If there is no such group or right, or the folder cannot be opened to the group.
    """
    name, folder, may = arguments.group, arguments.group_folder, arguments.group_may
    if name is None and (folder is not None or may is not None):
        raise ValueError("--group-folder and --group-may need --group NAME")
    if name is None:
        return None
    if folder is None:
        raise ValueError("--group needs --group-folder DIR: the pool's own folder is closed to others")
    rights = rights_of((may or DEFAULT_RIGHTS).split(","))
    if Right.SUBMIT in rights:
        print("note: a bundle is code that runs as this account; members who may submit can do all that it can",
              file=sys.stderr)  # fmt: skip
    return group_socket(name, folder, rights)
