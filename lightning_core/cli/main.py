# PYTHON_ARGCOMPLETE_OK
"""``lightning-core``: run bundles of training jobs, bring pools up, look at them and steer them.

Exit codes: 0 all jobs met (or the command succeeded), 3 some jobs did not, 1 a job crashed or `doctor` found an
error, 2 bad input or no pool, 70 the pool was lost, 129, 130 or 143 interrupted by a signal.
"""

from __future__ import annotations

import argparse
import os
import signal
import sqlite3
import sys
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from importlib.metadata import PackageNotFoundError, version

from lightning_core.cli import (
    advice,
    doctor,
    history_commands,
    init,
    job_commands,
    journals,
    run_bundle,
    simulate,
    status_command,
    up,
)
from lightning_core.cli.arguments import Parser, complete
from lightning_core.core.parts import all_parts
from lightning_core.errors import LightningCoreError
from lightning_core.name_conflict import describe_namesake
from lightning_core.node.signals import SignalReceivedError, raising_signals
from lightning_core.scheduler.summary import EXIT_BAD_INPUT, EXIT_MET, EXIT_POOL_LOST, PoolLostError
from lightning_core.storage.journals.journal_errors import JournalError
from lightning_core.variables import unknown
from lightning_core.view.lossy_output import fill_streams, lossy_output
from lightning_core.view.text import clean

# Modules of commands in the order in which --help lists them. A new one is a file with `add_commands`, and a word here.
COMMANDS = (
    run_bundle,
    advice,
    init,
    doctor,
    simulate,
    up,
    job_commands,
    status_command,
    history_commands,
    journals,
)
# Commands that continue although their output cannot be read; the others, which only show something, end. A part's
# command continues if its parser has the default `acts=True`.
ACTING = ("run", "up", "down", "submit", "deadline", "devices", "pause", "resume", "cancel", "tell")
Command = Callable[[argparse.Namespace], int]
# Modules that a command may find missing, by the extra that installs them.
EXTRAS = {"launch": "torch lightning lightning_utilities typing_extensions jsonargparse ray", "view": "matplotlib rich",
          "tensorboard": "tensorboardX"}  # fmt: skip


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; return the exit code."""
    parser = make_parser()
    core = {word for action in parser._actions for word in (action.choices or ())} - {"up"}
    words = sys.argv[1:] if argv is None else argv
    first = next((word for word in words if not word.startswith("-")), "")
    if first not in core or first == "status":  # a command of a part, --help, or a command with options of parts
        parser = make_parser(with_parts=True)
    complete(parser)
    fill_streams()
    arguments = parser.parse_args(argv)
    acts = arguments.command in ACTING or getattr(arguments, "acts", False)
    with lossy_output() if acts else nullcontext():
        return _run(arguments)


def _run(arguments: argparse.Namespace) -> int:
    """Run a command; return the exit code."""
    for warning in (*unknown(os.environ), *filter(None, [describe_namesake()])):
        print(f"warning: {clean(warning)}", file=sys.stderr)
    if arguments.debug:
        return int(arguments.run(arguments))
    try:
        with raising_signals():
            code = int(arguments.run(arguments))
        sys.stdout.flush()
        return code
    except BrokenPipeError:  # the reader has closed the pipe; nothing more can be flushed there
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return EXIT_MET
    except ModuleNotFoundError as error:
        return _fail(_missing(error))
    except PoolLostError as error:
        _fail(str(error))
        return EXIT_POOL_LOST
    except OSError as error:  # NoPoolError and NotOnThisMachineError too
        return _fail(f"{error.filename}: {error.strerror}" if error.filename and error.strerror else _message(error))
    except (LightningCoreError, ValueError, sqlite3.DatabaseError, JournalError) as error:
        return _fail(_message(error))
    except KeyboardInterrupt as error:
        print("interrupted", file=sys.stderr)
        return 128 + (error.number if isinstance(error, SignalReceivedError) else signal.SIGINT)


def _missing(error: ModuleNotFoundError) -> str:
    """Return an installation hint if one of our optional dependencies is missing."""
    module = (error.name or "").partition(".")[0]
    extra = next((extra for extra, modules in EXTRAS.items() if module in modules.split()), None)
    if extra is None or "pip install" in str(error):
        return str(error)
    return f"this needs {module}, which is not installed; run pip install -c constraints.txt '.[{extra}]' in the clone"


def _message(error: BaseException) -> str:
    return str(error) or type(error).__name__


def _version() -> str:
    try:
        return version("lightning-core-learning")
    except PackageNotFoundError:
        return "(not installed)"


def _fail(message: str) -> int:
    for problem in message.splitlines():
        print(f"error: {clean(problem)}", file=sys.stderr)
    return EXIT_BAD_INPUT


def make_parser(*, with_parts: bool = False) -> argparse.ArgumentParser:
    """Return the parser of all commands.

    Args:
        with_parts: Whether the parser has the commands of installed parts, such as those of the library itself.
    """
    parser = Parser(prog="lightning-core", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--version", action="version", version=f"lightning-core {_version()}")
    parser.set_defaults(debug=False, acts=False)
    commands = parser.add_subparsers(metavar="COMMAND", dest="command")

    def command(name: str, run: Command, description: str, *, acts: bool = False) -> argparse.ArgumentParser:
        made = commands.add_parser(name, help=description, description=description)
        made.set_defaults(run=run, acts=acts or name in ACTING)
        return made

    for module in COMMANDS:
        module.add_commands(command)
    if not with_parts:
        return parser
    for one in all_parts():
        try:
            if one.part.group is not None:
                status_command.add_group(commands.choices["status"], one.name)
            if one.part.commands is not None:
                one.part.commands(command)
            up.add_companions(commands.choices["up"], one.part)
        except Exception as error:  # code from outside may raise anything
            print(f"warning: the commands of {one.package} are left out: {clean(str(error))}", file=sys.stderr)
    return parser


if __name__ == "__main__":
    sys.exit(main())
