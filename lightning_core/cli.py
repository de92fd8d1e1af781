"""``lightning-core``: runs bundles, replays their journals, draws them.

Exit codes: 0 all jobs met, 3 some not, 1 a job crashed, 2 bad input, 130 or 143 interrupted.
"""

from __future__ import annotations

import argparse
import json
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

from lightning_core.durations import format_duration
from lightning_core.summary import EXIT_BAD_INPUT, EXIT_MET


def main(argv: Sequence[str] | None = None) -> int:
    """The command line; the answer is the exit code."""
    parser = argparse.ArgumentParser(prog="lightning-core", description=__doc__.splitlines()[0])
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    run = commands.add_parser("run", help="run a bundle of jobs on this machine")
    run.add_argument("bundle", type=Path, metavar="BUNDLE.yaml")
    run.add_argument("--policy", metavar="NAME", help="instead of the bundle's, such as fifo, edf, lara:order=edf")
    run.add_argument("--run-dir", type=Path, metavar="DIR", help="new folder for journal, spec and summary")
    run.add_argument("--json", type=Path, metavar="FILE", help="write the summary here too")
    run.set_defaults(run=_run)
    replay = commands.add_parser("replay", help="handle the journal of a run again and compare every directive")
    replay.add_argument("run_dir", type=Path, metavar="RUN_DIR", help="folder of a run, or its journal.db")
    replay.set_defaults(run=_replay)
    picture = commands.add_parser("picture", help="draw who had what share, and how the losses fell")
    picture.add_argument("run_dir", type=Path, metavar="RUN_DIR")
    picture.add_argument("--out", type=Path, default=Path("run.png"), metavar="FILE", help="PNG, SVG or PDF")
    picture.set_defaults(run=_picture)
    arguments = parser.parse_args(argv)
    code: int = arguments.run(arguments)
    return code


def _run(arguments: argparse.Namespace) -> int:
    from lightning_core.launch.bundle import Bundle
    from lightning_core.view.progress import print_summary, view_for

    try:
        bundle = Bundle.from_file(arguments.bundle)
        if arguments.policy:
            bundle = bundle.with_policy(arguments.policy)
        if arguments.json and not arguments.json.parent.is_dir():
            raise ValueError(f"--json: {arguments.json.parent} is not a folder")
        print(f"{len(bundle.jobs)} jobs under {bundle.settings.policy}; bringing up warm workers ...", flush=True)
        summary = bundle.run(run_dir=arguments.run_dir, watcher=view_for(sys.stdout))
    except ValueError as error:
        for problem in str(error).splitlines():
            print(f"error: {problem}", file=sys.stderr)
        return EXIT_BAD_INPUT
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 128 + signal.SIGINT
    print_summary(summary, sys.stdout)
    print(f"journal, spec and summary: {summary.run_dir}")
    if arguments.json:
        summary.write(arguments.json)
    return summary.exit_code


def _replay(arguments: argparse.Namespace) -> int:
    from lightning_core.journal import Journal, JournalError, replay

    try:
        with Journal.open(_journal_in(arguments.run_dir)) as journal:
            again = replay(journal)
            same = again.digest == journal.digest
    except JournalError as error:
        print(f"error: {error}", file=sys.stderr)
        return EXIT_BAD_INPUT
    body = {"events": again.events, "digest": again.digest, "identical": same}
    print(json.dumps(body))
    print(f"{again.events} events over {format_duration(again.now)} replayed", file=sys.stderr)
    return EXIT_MET if same else EXIT_BAD_INPUT


def _picture(arguments: argparse.Namespace) -> int:
    from lightning_core.journal import Journal, JournalError
    from lightning_core.view.picture import draw

    try:
        with Journal.open(_journal_in(arguments.run_dir)) as journal:
            draw(journal, arguments.out)
    except JournalError as error:
        print(f"error: {error}", file=sys.stderr)
        return EXIT_BAD_INPUT
    print(arguments.out)
    return EXIT_MET


def _journal_in(path: Path) -> Path:
    return path / "journal.db" if path.is_dir() else path


if __name__ == "__main__":
    sys.exit(main())
