"""``lightning-core token``: tokens of users without an account on this machine."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from datetime import datetime

from lightning_core.cli.arguments import add_folder
from lightning_core.core.durations import parse_duration
from lightning_core.parts.owners.tokens import Token, Tokens
from lightning_core.scheduler.summary import EXIT_MET
from lightning_core.server.access.people import Person, Right, rights_of
from lightning_core.server.discovery import folder_here
from lightning_core.storage.private_files import private_folder
from lightning_core.view.tables import print_table

NEVER = "never"


def add_commands(command: Callable[..., argparse.ArgumentParser]) -> None:
    """Add ``token new``, ``token list`` and ``token revoke``."""
    description = "make, list and revoke tokens of the pool's users"
    commands = command("token", print, description).add_subparsers(required=True, metavar="WHAT")

    def action(name: str, run: Callable[[argparse.Namespace], int], description: str) -> argparse.ArgumentParser:
        made: argparse.ArgumentParser = commands.add_parser(name, help=description, description=description)
        made.set_defaults(run=run)
        add_folder(made)
        return made

    new = action("new", _new, "make a token for a user and print it, once")
    new.add_argument("name", metavar="NAME", help="name of the user, who owns the jobs that are submitted with it")
    rights = f"rights beyond seeing one's own jobs: some of {','.join(Right)} (default none)"
    new.add_argument("--may", default="", metavar="RIGHTS", help=rights)
    until = f"time after which it is not valid any more, such as 30d, or {NEVER} (default 30d)"
    new.add_argument("--expires", default="30d", metavar="TIME", help=until)
    action("list", _list, "list the tokens that are not revoked")
    revoke = action("revoke", _revoke, "revoke all tokens of a user, or one by its id")
    revoke.add_argument("name", metavar="NAME", help="name of the user, or id of a token")


def _tokens(arguments: argparse.Namespace) -> Tokens:
    return Tokens((arguments.folder or folder_here()).expanduser())


def _new(arguments: argparse.Namespace) -> int:
    rights = rights_of(filter(None, arguments.may.split(",")))
    expires = None if arguments.expires == NEVER else parse_duration(arguments.expires)
    private_folder((arguments.folder or folder_here()).expanduser())
    secret = _tokens(arguments).make(arguments.name, rights, expires)
    print(secret)
    words = Person(arguments.name, rights).words
    print(f"{arguments.name} may: {words}. It is not shown again; `token revoke` revokes it", file=sys.stderr)
    if Right.SUBMIT in rights:
        print("note: a bundle is code that runs as this account; a user who may submit one can do the same",
              file=sys.stderr)  # fmt: skip
    return EXIT_MET


def _list(arguments: argparse.Namespace) -> int:
    rows = [_row(token) for token in _tokens(arguments).list()]
    if rows:
        print_table(("name", "id", "may", "made", "expires"), rows)
    else:
        print("no tokens; `lightning-core token new NAME` makes one")
    return EXIT_MET


def _row(token: Token) -> tuple[str, ...]:
    expires = NEVER if token.expires is None else _day(token.expires)
    expired = "" if token.is_valid(datetime.now().timestamp()) else " (expired)"
    return token.name, token.id, Person(token.name, token.rights).words, _day(token.made), expires + expired


def _day(seconds: float) -> str:
    return datetime.fromtimestamp(seconds).strftime("%Y-%m-%d %H:%M")


def _revoke(arguments: argparse.Namespace) -> int:
    revoked = _tokens(arguments).revoke(arguments.name)
    if not revoked:
        raise ValueError(f"no token {arguments.name!r}; `lightning-core token list` lists them")
    print(f"revoked: {revoked} token{'s' * (revoked > 1)} of {arguments.name}")
    return EXIT_MET
