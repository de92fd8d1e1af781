"""Banned words: one word stands for one thing, and it is the word that the field uses (docs/glossary.md)."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import ROOT

# Words that are not used, and what to say instead.
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
    "deed": "fault, action",
    "deeds": "faults, actions",
    "wish": "request",
    "wishes": "requests",
    "nought": "zero",
    "himself": "itself",
    "herself": "itself",
    # The spelling of torch and Lightning.
    "optimise": "optimize",
    "optimised": "optimized",
    "optimises": "optimizes",
    "optimiser": "optimizer",
    "optimisers": "optimizers",
    "optimisation": "optimization",
}
# Phrases that are not used, in lower case, and what to say instead.
BANNED_PHRASES = {
    "for fear of": "in case of",
    "gone on with": "resumed",
    "goes on with": "continues with",
    "bad luck": "safety margin",
    "brings home": "meets the deadlines of",
}
# Exceptions by file, where a word has its ordinary meaning.
# The kernel calls what joins network interfaces so.
ALLOWED: dict[str, tuple[str, ...]] = {"tests/machines.py": ("bridge",)}

FOLDERS = ("lightning_core", "callbacks", "benchmarks", "examples", "docs", "tests")
FILES = ("README.md", "ARCHITECTURE.md", "SECURITY.md")
WORD = re.compile(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])")
FENCED_NAMES = re.compile(r"`?tests/[\w/.:]+`?|\[`test_[^\]]*\]")


def files() -> Iterator[Path]:
    """Yield code, tests, documentation and examples, without recordings and this file."""
    for folder in FOLDERS:
        for suffix in ("py", "md", "yaml"):
            yield from (path for path in sorted((ROOT / folder).rglob(f"*.{suffix}")) if path != Path(__file__))
    yield from (ROOT / name for name in FILES)


def banned_in(text: str) -> set[str]:
    """Return the banned words and phrases in code and prose, parts of names in snake and camel case included.

    Example::

        >>> sorted(banned_in("class TurnstileClient: keeper_of = 'nobody'  # for fear\\n of loss"))
        ['for fear of', 'keeper', 'nobody', 'turnstile']
    """
    text = FENCED_NAMES.sub("", text)
    plain = re.sub(r"[\s#]+", " ", text).lower()
    words = {word.lower() for word in WORD.findall(text)} & BANNED.keys()
    return words | {phrase for phrase in BANNED_PHRASES if phrase in plain}


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
            found.append(f"{name}: {word!r}: say {(BANNED | BANNED_PHRASES)[word]}")
    assert not found, "\n".join(found)


def test_every_exception_still_occurs() -> None:
    for name, words in ALLOWED.items():
        assert (ROOT / name).exists(), name
        gone = set(words) - banned_in((ROOT / name).read_text())
        assert not gone, f"{name}: {sorted(gone)} no longer occur: take them off the list"
