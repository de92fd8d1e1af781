"""Parts that all commands share: checked values, help with typing mistakes, completion."""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NoReturn

from lightning_core.core.names import closest, listed
from lightning_core.server.discovery import AUTO, connect, home


class Parser(argparse.ArgumentParser):
    """Parser whose errors suggest the word that was probably meant."""

    def __init__(self, *args: Any, **more: Any) -> None:
        super().__init__(*args, **more)
        self._negative_number_matcher = re.compile(r"-\d")  # -5m is a value that is wrong, not an option
        self.set_defaults(parser=self)  # the innermost one of a command remains
        self.add_argument("--debug", action="store_true", default=argparse.SUPPRESS,
                          help="show tracebacks of this program's own errors")  # fmt: skip

    def parse_args(self, args: Sequence[str] | None = None, namespace: Any = None) -> Any:  # type: ignore[override]
        """Parse the arguments; exit with usage and the reason if there is a mistake."""
        found, rest = self.parse_known_args(args, namespace)
        if rest:
            command: Parser = found.parser
            options = [word for word in rest if word.startswith("-") and word != "--"]
            known = [option for action in command._actions for option in action.option_strings]
            close = closest(options[0].partition("=")[0], known) if options else None
            hint = f"; did you mean {close}?" if close else ""
            command.error(f"unknown {'option' if options else 'argument'}: {' '.join(options or rest)}{hint}")
        if not hasattr(found, "run"):
            self.error("a command is missing; --help lists them")
        return found

    def _get_values(self, action: argparse.Action, arg_strings: list[str]) -> Any:
        if "" in (arg_strings[:1] if isinstance(action, argparse._SubParsersAction) else arg_strings):
            raise argparse.ArgumentError(action, "must not be empty, got ''")
        return super()._get_values(action, arg_strings)

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        choices = list(action.choices or [])
        if choices and value not in choices:
            close = closest(value, map(str, choices))
            hint = f"did you mean {close}?" if close else f"expected one of {listed(map(str, choices), 30)}"
            raise argparse.ArgumentError(action, f"unknown: {str(value)!r}; {hint}")

    def error(self, message: str) -> NoReturn:
        """Exit with usage and the reason; control characters are escaped."""
        super().error("".join(c if c.isprintable() else ascii(c)[1:-1] for c in message))


def whole_number(minimum: int, maximum: int | None = None) -> Callable[[str], int]:
    """Return a function that reads a whole number within these limits."""
    rule = f"a whole number of at least {minimum}" if maximum is None else f"a whole number from {minimum} to {maximum}"

    def read(text: str) -> int:
        try:
            number = int(text)
        except ValueError:
            number = minimum - 1
        if number < minimum or (maximum is not None and number > maximum):
            raise argparse.ArgumentTypeError(f"must be {rule}, got {_shown(text)}")
        return number

    return read


def new_file(text: str) -> Path:
    """Return the path of a file to write.

    Raises:
        argparse.ArgumentTypeError: If the path is a folder, or its parent folder does not exist.
    """
    path = Path(text)
    if path.is_dir():
        raise argparse.ArgumentTypeError(f"must be a file, got the folder {_shown(text)}")
    if not path.parent.is_dir():
        raise argparse.ArgumentTypeError(f"must be in a folder that exists, got {_shown(text)}")
    return path


def _shown(text: str) -> str:
    return repr(text if len(text) <= 60 else f"{text[:57]}...")


def add_pool(parser: argparse.ArgumentParser) -> None:
    """Add the option that names the pool."""
    where = "folder of a pool, host:port of its Ray, or its https:// address, which takes LIGHTNING_CORE_TOKEN"
    parser.add_argument("--pool", default=AUTO, metavar="WHERE", help=where)


def add_allow_import(parser: argparse.ArgumentParser) -> None:
    """Add the option that limits what class paths may name."""
    allowed = "module that class paths may name, and no others; repeat for more"
    parser.add_argument("--allow-import", action="append", default=[], metavar="MODULE", help=allowed)


# ---------------------------------------------------------------------------------------------------- completion


def complete(parser: argparse.ArgumentParser) -> None:
    """Answer a shell that asks for completions if argcomplete is installed; else do nothing."""
    try:
        import argcomplete
    except ModuleNotFoundError:
        return
    add_completers(parser)
    argcomplete.autocomplete(parser)


def add_completers(parser: argparse.ArgumentParser) -> None:
    """Set the completer of each argument by its name; argcomplete knows the others."""
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for command in action.choices.values():
                add_completers(command)
        elif action.dest in COMPLETERS:
            action.completer = COMPLETERS[action.dest]  # type: ignore[attr-defined]  # argcomplete looks for it there


def names_of_jobs(prefix: str = "", parsed_args: argparse.Namespace | None = None, **_: Any) -> list[str]:
    """Return the names of the jobs of the run folder or the pool; empty if it cannot be asked."""
    try:
        if (folder := getattr(parsed_args, "run_dir", None)) is not None:
            return sorted(path.name for path in (folder / "jobs").iterdir())
        client = connect(getattr(parsed_args, "pool", None) or AUTO)
        return [] if client is None else [job.name for job in client.status()[1]]
    except Exception:  # a traceback would garble the command line
        return []


def names_of_policies(**_: Any) -> list[str]:
    """Return the names of all policies."""
    from lightning_core.policies import POLICIES

    return sorted(POLICIES)


def run_folders(prefix: str = "", **_: Any) -> list[str]:
    """Return folders that hold a journal, and other folders that may lead to one."""
    parent = Path(prefix) if prefix.endswith("/") or not prefix else Path(prefix).parent
    try:
        folders = [path for path in parent.iterdir() if path.is_dir() and not path.name.startswith(".")]
    except OSError:
        return []
    return [f"{path}" if (path / "journal.db").exists() else f"{path}/" for path in folders]


def run_folders_or_jobs(prefix: str = "", **more: Any) -> list[str]:
    """Return completions after ``why``: a folder, a job of the pool, or a job of the folder given before."""
    parsed = more.get("parsed_args")
    folder = Path(getattr(parsed, "job", None) or "")
    if folder.name and folder.is_dir():
        return names_of_jobs(prefix, parsed_args=argparse.Namespace(run_dir=folder))
    return [*names_of_jobs(prefix, **more), *run_folders(prefix)]


COMPLETERS: dict[str, Callable[..., list[str]]] = {
    "job": names_of_jobs,
    "policy": names_of_policies,
    "run_dir": run_folders_or_jobs,
    "resume": run_folders,
}


def add_folder(parser: argparse.ArgumentParser) -> None:
    """Add the option that names a pool of this machine by its folder."""
    words = f"folder of the pool (default: that of LIGHTNING_CORE_POOL, else {home()})"
    parser.add_argument("--folder", type=Path, metavar="DIR", help=words)
