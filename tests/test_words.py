"""The private dialect of earlier versions is gone: one word for one thing, and the word that the field uses."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import ROOT

# What the old dialect called it, and what it is called now (docs/glossary.md).
BANNED = {
    "turnstile": "device arbiter",
    "keeper": "pool manager",
    "mourn": "report_lost",
    "mourned": "reported lost",
    "bury": "on_worker_exit",
    "buried": "ended",
    "epitaph": "exit cause",
    "duty": "share",
    "duties": "shares",
    "reaper": "orphan guard",
    "lecture": "counterfactual utilities",
    "lectures": "counterfactual utilities",
    "lesson": "counterfactual utilities",
    "lessons": "counterfactual utilities",
    "stint": "incarnation",
    "stints": "incarnations",
    "unready": "not ready; LaunchTimedOutError",
    "unsound": "corrupt",
    "programme": "MILP model",
    "whoever": "the job, process or person that is meant",
    "nobody": "no job, no process, no person",
    "somebody": "a job, a process, a person",
    "bridge": "proxy",
    "bridges": "proxies",
    "welcome": "join reply",
    "outlook": "job forecast",
    "madeup": "simulated",
    "lived": "simulated",
    "doors": "servers",
}
# Where one of them is meant as what it says. The rest still occurs, and shrinks: a word that is gone from a file goes
# from here too.
ALLOWED: dict[str, tuple[str, ...]] = {}

FOLDERS = ("lightning_core", "callbacks", "benchmarks", "examples", "docs")
FILES = ("README.md", "ARCHITECTURE.md", "SECURITY.md")
WORD = re.compile(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])")
FENCED_NAMES = re.compile(r"`?tests/[\w/.:]+`?|\[`test_[^\]]*\]")


def files() -> Iterator[Path]:
    """What people read and write: code, documentation and examples, without recordings."""
    for folder in FOLDERS:
        for suffix in ("py", "md", "yaml"):
            yield from sorted((ROOT / folder).rglob(f"*.{suffix}"))
    yield from (ROOT / name for name in FILES)


def banned_in(text: str) -> set[str]:
    """Banned words in identifiers, comments, strings and prose, parts of names in snake and camel case included.

    Example::

        >>> sorted(banned_in("class TurnstileClient: keeper_of = 'nobody'"))
        ['keeper', 'nobody', 'turnstile']
    """
    return {word.lower() for word in WORD.findall(FENCED_NAMES.sub("", text))} & BANNED.keys()


PATHS = list(files())


def test_the_checked_files_are_found() -> None:
    assert len(PATHS) > 200


@pytest.mark.parametrize("folder", [*FOLDERS, ""])
def test_no_banned_words(folder: str) -> None:
    found = []
    for path in PATHS:
        name = str(path.relative_to(ROOT))
        if (name.split("/")[0] if "/" in name else "") != folder:
            continue
        for word in sorted(banned_in(path.read_text()) - set(ALLOWED.get(name, ()))):
            found.append(f"{name}: {word!r}: say {BANNED[word]}")
    assert not found, "\n".join(found)


def test_every_exception_still_occurs() -> None:
    for name, words in ALLOWED.items():
        assert (ROOT / name).exists(), name
        gone = set(words) - banned_in((ROOT / name).read_text())
        assert not gone, f"{name}: {sorted(gone)} no longer occur: take them off the list"
