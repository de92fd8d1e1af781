"""Tokens of users without an account on the pool's machine: random, stored hashed, revocable.

A token is 256 random bits, so a plain digest reveals nothing: no guess comes near, however fast. It is shown once, when
it is made. Times are wall-clock times, in seconds since 1970.
"""

from __future__ import annotations

import fcntl
import hashlib
import hmac
import json
import os
import re
import secrets
import time
from collections.abc import Collection, Iterator, MutableSequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from lightning_core.core.limits import check_seconds
from lightning_core.core.names import check_person
from lightning_core.core.validation import checked, made
from lightning_core.server.access.people import Person, Right
from lightning_core.storage.atomic_files import write_whole
from lightning_core.storage.private_files import check_ours, owner_only, read_own

FILE, VERSION = "tokens.json", 1
MAX_TOKENS, MAX_FILE_BYTES = 1000, 2**20
# Prefix of a token, so that scanners for secrets in code and logs find it.
PREFIX, SECRET_BYTES = "lct_", 32
_TOKEN = re.compile(PREFIX + "[A-Za-z0-9_-]{43}")


class Token(NamedTuple):
    """Record of a token."""

    id: str
    """Random, of 8 hexadecimal digits: it tells the tokens of one person apart, and is no secret."""
    name: str
    """Name of the person."""
    rights: frozenset[Right]
    sha256: str
    """SHA-256 of the token."""
    made: float
    expires: float | None
    """Time from which it is not valid any more; None for never."""

    def is_valid(self, now: float) -> bool:
        """Return whether it has not expired."""
        return self.expires is None or now < self.expires


class Tokens:
    """The tokens of a pool, in a file of its folder.

    Any number of processes may use it: one that reads the file notices that another one has changed it.

    Args:
        folder: Folder of the pool, which must exist.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._seen: tuple[int, ...] | None = None
        self._tokens: tuple[Token, ...] = ()

    def make(self, name: str, rights: Collection[Right], expires: float | None = None) -> str:
        """Make a token and return it; it cannot be recovered from its record.

        Args:
            name: Name of the user, who may have several tokens.
            rights: Rights that it gives.
            expires: Seconds from now after which it is not valid any more; None for never.

        Raises:
            ValueError: If the name is not valid for a person, the time is out of its range, or there are too many.
            OSError: If it cannot be kept.
        """
        check_person(name)
        check_seconds("expires", expires)
        secret, now = PREFIX + secrets.token_urlsafe(SECRET_BYTES), time.time()
        with self._changing() as tokens:
            if len(tokens) >= MAX_TOKENS:
                raise ValueError(f"tokens must be at most {MAX_TOKENS:,}, got {len(tokens) + 1:,}: revoke some")
            until = None if expires is None else now + expires
            tokens.append(Token(secrets.token_hex(4), name, frozenset(rights), _digest(secret), now, until))
        return secret

    def revoke(self, name: str) -> int:
        """Revoke all tokens of a user, or one by its id; return their number.

        Raises:
            OSError: If that cannot be written: then they are still valid.
        """
        with self._changing() as tokens:
            left = [token for token in tokens if name not in (token.name, token.id)]
            revoked = len(tokens) - len(left)
            tokens[:] = left
        return revoked

    def list(self) -> tuple[Token, ...]:
        """Return the records of all tokens that are not revoked, in the order of creation.

        Raises:
            ValueError: If the file is damaged, or another user can change it.
            OSError: If it cannot be read.
        """
        path = self._folder / FILE
        try:
            status = path.lstat()
        except FileNotFoundError:
            self._seen, self._tokens = None, ()
            return ()
        # A file that was replaced within one tick of the clock has another inode.
        seen = (status.st_ino, status.st_dev, status.st_mtime_ns, status.st_size, status.st_mode, status.st_uid)
        if seen != self._seen:
            self._tokens = _read(path, read_own(self._folder, FILE, MAX_FILE_BYTES))
            self._seen = seen
        return self._tokens

    def person(self, token: str) -> Person | None:
        """Return the user of a token; None if it is unknown, revoked or expired.

        Raises:
            ValueError: If the file is damaged, or another user can change it.
            OSError: If it cannot be read.
        """
        tokens, now = self.list(), time.time()
        if not isinstance(token, str) or not _TOKEN.fullmatch(token):
            return None
        digest, found = _digest(token), None
        for one in tokens:  # all of them, in a time that does not depend on how far a digest agrees
            if hmac.compare_digest(one.sha256, digest) and one.is_valid(now):
                found = one
        return None if found is None else Person(found.name, found.rights)

    @contextmanager
    def _changing(self) -> Iterator[MutableSequence[Token]]:
        """Yield the tokens, which are written after the block; one process at a time."""
        check_ours(self._folder)
        with owner_only():
            flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
            lock = os.open(self._folder / f"{FILE}.lock", flags, 0o600)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX)
                tokens = list(self.list())
                yield tokens
                body = {"version": VERSION, "tokens": [_to_dict(token) for token in tokens]}
                write_whole(self._folder / FILE, json.dumps(body, indent=1))
            finally:
                os.close(lock)


def _digest(token: str) -> str:
    return hashlib.sha256(token.encode()).hexdigest()


def _to_dict(token: Token) -> dict[str, Any]:
    return token._asdict() | {"rights": sorted(token.rights)}


def _read(path: Path, content: bytes) -> tuple[Token, ...]:
    try:
        body = checked(json.loads(content), dict)
        if body["version"] != VERSION:
            raise ValueError(f"version must be {VERSION}, got {body['version']}")
        tokens = [made(Token, one) for one in body["tokens"]]
        for token in tokens:
            check_person(token.name)
            if not re.fullmatch("[0-9a-f]{64}", token.sha256):
                raise ValueError("a digest must have 64 hexadecimal digits")
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ValueError(
            f"{path}: is no file of tokens ({type(error).__name__}: {error}); remove it and make new tokens"
        ) from None
    return tuple(tokens)
