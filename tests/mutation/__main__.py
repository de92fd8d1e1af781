"""Measure modules and write docs/mutants.md: ``python -m tests.mutation [OPTION...] MODULE...``.

A module goes into docs/mutants.json as soon as it is done; the others there stay as they are. So a run that was stopped
continues with the modules that are left. Without a module, the page is written anew from the record.
"""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import json
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path

from tests.mutation.elsewhere import survive_elsewhere
from tests.mutation.mutants import LEFT_ALONE, ROOT, Mutant, mutants_of, sample
from tests.mutation.page import PAGE, Measured, Survivor, equivalent, read, save, written

WORKSPACES = ROOT / "build" / "mutants"
# Rooms with tests in other folders too. The market is also asked as the controller of a pool asks it, and the scheduler
# as those ask it who move it: targets, controllers and the market.
TESTS = {
    "parts/market": ("parts/market", "controllers"),
    "planning": ("planning", "policies"),
    "scheduler": (
        "scheduler",
        "controllers",
        "core/test_targets.py",
        "core/test_target_types.py",
        "parts/market/test_earlier_feedback.py",
        "parts/market/test_market_jobs.py",
    ),
}
BESIDE = ("callbacks", "benchmarks", "examples", "docs", "README.md", "ARCHITECTURE.md", "Makefile")
PURE = "not (gpu or nightly or cluster or stories or faults)"
# Seconds of the slowest test that is asked: a survivor is asked all its tests, and there are thousands of mutants.
SLOW = 0.5
# mutmut's codes: no test failed, none was chosen, none reaches the function.
SURVIVED = (0, 5, 33)
# Not run, or pytest was interrupted.
UNKNOWN = (None, 2)


@contextlib.contextmanager
def locked(path: Path) -> Iterator[None]:
    """Wait until no other process has the lock."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def room_of(module: str) -> str:
    """Return the room of a module.

    Example::

        >>> room_of("lightning_core/planning/ramp.py"), room_of("lightning_core/parts/market/programs/optimum.py")
        ('planning', 'parts/market')
    """
    _, room, part, *_ = Path(module).parts
    return f"{room}/{part}" if room == "parts" else room


def tests_of(room: str) -> list[str]:
    """Return the paths of the tests that run on the mutants of a room."""
    return [f"tests/{name}" for name in TESTS.get(room, (room,))]


def name_of(room: str) -> str:
    """Return the name of the folders and files that are made for a room."""
    return room.replace("/", "-")


def workspace_of(room: str) -> Path:
    """Return the folder in which mutmut keeps its copy of the repository, and what it knows of the tests of a room."""
    folder = WORKSPACES / name_of(room)
    # mutmut looks for tests that are new, but not for what a test reaches now that the code has changed.
    known = folder / "mutants" / "mutmut-stats.json"
    changed = max(path.stat().st_mtime for path in (ROOT / "lightning_core" / room).rglob("*.py"))
    if known.exists() and known.stat().st_mtime < changed:
        shutil.rmtree(folder)
    folder.mkdir(parents=True, exist_ok=True)
    for name in ("lightning_core", "tests", "pyproject.toml", *BESIDE):
        if not (folder / name).exists():
            (folder / name).symlink_to(ROOT / name)
    settings = {
        "source_paths": ["lightning_core"],
        "only_mutate": [f"lightning_core/{room}/*"],
        "do_not_mutate": ["*/testing/*.py"],
        "do_not_mutate_patterns": [LEFT_ALONE],
        "also_copy": BESIDE,
        "pytest_add_cli_args_test_selection": tests_of(room),
        "pytest_add_cli_args": ["-p", "no:cacheprovider", "-m", PURE],
        "use_git_change_detection": ["false"],
    }
    lines = [f"{key} =" + "".join(f"\n  {value}" for value in values) for key, values in settings.items()]
    (folder / "setup.cfg").write_text("\n".join(["[mutmut]", *lines, ""]))
    return folder


def run(module: str, before: Measured | None, most: int, seed: str, children: int) -> Measured:
    """Run the tests of a module's room on at most ``most`` of its mutants, or on those that survived ``before``.

    Those that survive are shown to the tests of other folders, but for those that compute the same.
    """
    room = room_of(module)
    folder = workspace_of(room)
    with contextlib.chdir(folder):  # where mutmut reads its settings
        found = mutants_of(module)
    tried = sample(found, most, seed)
    if before is not None:
        survived = {(one.old, one.new) for one in before.survivors}
        tried = [mutant for mutant in found if (mutant.old, mutant.new) in survived]
    if tried:
        ask_fast_tests(folder, tried[0].name)
        mutmut(folder, "run", "--max-children", str(children), *(mutant.name for mutant in tried))
    survivors, same = list(survivors_of(module, tried)), equivalent()
    others = [one for one in survivors if (module, one.old, one.new) not in same]
    elsewhere = list(survive_elsewhere(module, others, tests_of(room), WORKSPACES / f"elsewhere-{name_of(room)}", PURE))
    survivors = sorted(one for one in survivors if one not in others or one in elsewhere)
    today = datetime.now(UTC).date().isoformat()
    if before is not None:
        return Measured(today, before.found, before.tried, survivors)
    return Measured(today, len(found), len(tried), survivors)


def ask_fast_tests(folder: Path, name: str) -> None:
    """Let mutmut time the tests, and ask the fast ones only; all where a function is reached by slow ones alone."""
    stats = folder / "mutants" / "mutmut-stats.json"
    if not stats.exists():
        mutmut(folder, "run", "--max-children", "1", name)
    known = json.loads(stats.read_text())
    seconds, tests = known["duration_by_test"], known["tests_by_mangled_function_name"]
    for function, every in tests.items():
        tests[function] = [test for test in every if seconds[test] <= SLOW] or every
    stats.write_text(json.dumps(known))


def mutmut(folder: Path, *words: str) -> None:
    """Run mutmut in a workspace; what it says goes into the file ``log`` there."""
    command = [str(Path(sys.executable).with_name("mutmut")), *words]
    with (folder / "log").open("w") as log:
        subprocess.run(command, cwd=folder, check=True, stdout=log)


def survivors_of(module: str, tried: Sequence[Mutant]) -> Iterator[Survivor]:
    """Return which of the mutants that mutmut has run survived."""
    if not tried:
        return  # mutmut has not looked at a module without mutants
    meta = json.loads((WORKSPACES / name_of(room_of(module)) / "mutants" / f"{module}.meta").read_text())
    for mutant in tried:
        code = meta["exit_code_by_key"][mutant.name]
        if code in UNKNOWN:
            raise SystemExit(f"{mutant.name}: not measured")
        if code in SURVIVED:
            yield Survivor(mutant.line, mutant.old, mutant.new)


def main() -> None:
    """Measure the modules of the command line, room by room."""
    parser = argparse.ArgumentParser(prog="python -m tests.mutation", description=__doc__)
    parser.add_argument(
        "modules", nargs="*", metavar="MODULE", help="path such as lightning_core/parts/market/selector.py"
    )
    parser.add_argument("--most", type=int, default=60, metavar="N", help="mutants of a module, 0: all (default: 60)")
    parser.add_argument("--seed", default="", metavar="TEXT", help="try another sample")
    parser.add_argument("--again", action="store_true", help="only those that survived the last time")
    parser.add_argument("--children", type=int, default=1, metavar="N", help="processes at a time (default: 1)")
    given = parser.parse_args()
    for module in given.modules:
        # Two runs side by side measure different rooms.
        with locked(WORKSPACES / f"{name_of(room_of(module))}.lock"):
            before = read().get(module) if given.again else None
            measured = run(module, before, given.most, given.seed, given.children)
        with locked(WORKSPACES / "record.lock"):
            save({module: measured})
        print(f"{module}: {measured.tried} of {measured.found} tried, {len(measured.survivors)} survived", flush=True)
    PAGE.write_text(written(read(), equivalent()))


if __name__ == "__main__":
    main()
