"""Checks of names of jobs and users, and suggestions of known words for unknown ones."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable
from typing import TypeGuard

# A job's name is a folder, a line in a terminal and a word in a web page: plain ASCII, no path, no option.
NAME_RULE = "1 to 63 letters, digits, '.', '_', '-', the first a letter or digit, the last no '.'; no device, as CON"
MAX_NAME_LENGTH = 63
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")
# Folders are copied to machines where these are devices, whatever their endings.
_DEVICES = re.compile(r"(con|prn|aux|nul|com[0-9]|lpt[0-9])(\..*)?", re.IGNORECASE)
# The name of a user is that of an account of the machine, or one that the pool's owner has chosen.
PERSON_RULE = "1 to 63 letters, digits, '.', '_', '-', '@', the first a letter, a digit or '_'"
_PERSON = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._@-]{0,62}")
# The program through which a user asks, such as that of an assistant.
PROGRAM_RULE = "1 to 32 letters, digits, '.', '_', '-', the first a letter or digit, and perhaps as much in brackets"
MAX_PROGRAM_LENGTH = 67
_PROGRAM = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,31}(?: \([A-Za-z0-9][A-Za-z0-9._-]{0,31}\))?")
_SENDER = re.compile(rf"(?:{_PERSON.pattern})(?: through {_PROGRAM.pattern})?")
_SECRET = re.compile(r"api_?key|key|token|secrets?|passw(or)?d|passphrase|credentials?", re.IGNORECASE)


def is_name(name: object) -> TypeGuard[str]:
    """Return whether a value is a valid name of a job.

    Example::

        >>> [is_name(name) for name in ("vit-2.b", "-rf", "../x", "a.", "con.txt", "j\\u043eb")]
        [True, False, False, False, False, False]
    """
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        return False
    return name[-1] != "." and not _DEVICES.fullmatch(name)


def check_name(name: object) -> str:
    """Return a name after checking that it is valid for a job.

    Raises:
        ValueError: If it is not; the message has the rule.
    """
    if not is_name(name):
        raise ValueError(f"invalid job name {_ascii(name)}: {NAME_RULE}")
    return name


def _ascii(name: object) -> str:
    return ascii(name if len(str(name)) <= 80 else f"{str(name)[:77]}...")


def is_person(name: object) -> TypeGuard[str]:
    """Return whether a value is a valid name of a user.

    Example::

        >>> [is_person(name) for name in ("ann", "ann@lab.org", "_apt", "a b", "-rf", "<b>")]
        [True, True, True, False, False, False]
    """
    return isinstance(name, str) and _PERSON.fullmatch(name) is not None


def check_person(name: object) -> str:
    """Return a name after checking that it is valid for a user.

    Raises:
        ValueError: If it is not; the message has the rule.
    """
    if not is_person(name):
        raise ValueError(f"invalid name of a person {_ascii(name)}: {PERSON_RULE}")
    return name


def check_program(name: object) -> str:
    """Return a name after checking that it is valid for a program through which users ask.

    Raises:
        ValueError: If it is not; the message has the rule.

    Example::

        >>> check_program("mcp (claude-code)")
        'mcp (claude-code)'
        >>> check_program("mcp (a) (b)")  # doctest: +ELLIPSIS
        Traceback (most recent call last):
        ...
        ValueError: invalid name of a program 'mcp (a) (b)': 1 to 32 letters, digits, ...
    """
    if not isinstance(name, str) or not _PROGRAM.fullmatch(name):
        raise ValueError(f"invalid name of a program {_ascii(name)}: {PROGRAM_RULE}")
    return name


def sender_name(person: str, program: str = "") -> str:
    """Return who sent a command: a user, and the program through which that user asked.

    Args:
        person: Name of the user; empty if unknown.
        program: Name of the program; empty for none.

    Example::

        >>> sender_name("ann"), sender_name("ann", "mcp (claude-code)")
        ('ann', 'ann through mcp (claude-code)')
    """
    return f"{person} through {program}" if person and program else person


def check_sender_name(name: object) -> str:
    """Return what :func:`sender_name` returned, after checking that it is valid.

    Raises:
        ValueError: If it is not.
    """
    if not isinstance(name, str) or not _SENDER.fullmatch(name):
        raise ValueError(f"invalid name of a person {_ascii(name)}: {PERSON_RULE}")
    return name


def is_secret(path: Iterable[object]) -> bool:
    """Return whether a value of a config must not be shown: an argument on its path is named like a secret.

    Args:
        path: Keys and indices that lead to it. Those before ``init_args`` are words of this package and names of jobs.

    Example::

        >>> [is_secret(("model", "init_args", name)) for name in ("api_key", "HF_TOKEN", "tokenizer", "max_tokens")]
        [True, True, False, False]
        >>> is_secret(("jobs", "token-classification", "deadline"))
        False
    """
    names = [str(part) for part in path]
    arguments = names[names.index("init_args") + 1 :] if "init_args" in names else []
    return any(_SECRET.fullmatch(part) for name in arguments for part in (name, *re.split(r"[^A-Za-z0-9]", name)))


def listed(names: Iterable[str], max_count: int = 10) -> str:
    """Return names in one line, with the number of those beyond the limit.

    Example::

        >>> listed("abc"), listed("abcd", max_count=2), listed([])
        ('a, b, c', 'a, b, ... and 2 more', 'none')
    """
    names = list(names)
    more = [f"... and {len(names) - max_count} more"] if len(names) > max_count else []
    return ", ".join([*names[:max_count], *more]) or "none"


def devices_words(devices: Iterable[int], kind: str = "", between: str = ",") -> str:
    """Return the numbers of devices, behind their kind; a dash for none.

    Example::

        >>> devices_words((0, 1), "a100"), devices_words((3,)), devices_words((), "a100")
        ('a100:0,1', '3', '-')
    """
    numbers = between.join(map(str, devices))
    return (f"{kind}:{numbers}" if kind else numbers) if numbers else "-"


def closest(word: object, known: Iterable[str], similarity: float = 0.6) -> str | None:
    """Return the known word that is meant, most likely; None if none is as similar, from 0 to 1.

    Example::

        >>> closest("Traige", ["triage", "edf"]), closest("fifo", ["edf"])
        ('triage', None)
    """
    by_folded = {name.casefold(): name for name in known}
    close = difflib.get_close_matches(str(word)[:100].casefold(), sorted(by_folded), n=1, cutoff=similarity)
    return by_folded[close[0]] if close else None


def did_you_mean(word: object, known: Iterable[str]) -> str:
    """Return ``; did you mean 'deadline'?`` if a known word is close, else the known words.

    Example::

        >>> did_you_mean("edg", ["fifo", "edf"]), did_you_mean("a", ["y", "x", "y"])
        ("; did you mean 'edf'?", '; expected one of x, y')
    """
    known = sorted(set(known))
    close = closest(word, known)
    return f"; expected one of {listed(known)}" if close is None else f"; did you mean {close!r}?"
