"""Tokens: made once, stored hashed, and worth nothing once they are revoked, expired or of another pool."""

from __future__ import annotations

import hmac
import json
import os
import re
import stat
import threading
from pathlib import Path
from typing import Any

import pytest

from lightning_core.cli.main import main
from lightning_core.parts.owners import tokens as module
from lightning_core.parts.owners.tokens import FILE, Tokens
from lightning_core.server.access.people import Person, Right, rights_of
from tests.others import OTHER

SEE = frozenset({Right.SEE})


class Clock:
    def __init__(self) -> None:
        self.now = 1e9

    def time(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(module, "time", made)
    return made


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (made := tmp_path / "pool").mkdir(mode=0o700)
    return made


def of_one(**changed: Any) -> str:
    one = {"id": "1", "name": "ann", "rights": ["see"], "sha256": "0" * 64, "made": 1.0, "expires": None}
    return json.dumps({"version": 1, "tokens": [one | changed]})


def test_a_token_says_who_its_holder_is_and_what_that_person_may_do(folder: Path) -> None:
    tokens = Tokens(folder)
    ann = tokens.make("ann", SEE)
    bob = tokens.make("bob", [Right.SUBMIT, Right.STEER_OWN])
    assert tokens.person(ann) == Person("ann", SEE)
    assert tokens.person(bob) == Person("bob", frozenset({Right.SUBMIT, Right.STEER_OWN}))
    assert Tokens(folder).person(ann) == Person("ann", SEE)  # another process
    assert ann != bob
    assert re.fullmatch("lct_[A-Za-z0-9_-]{43}", ann)


def test_the_file_holds_no_token_and_is_private(folder: Path) -> None:
    before = os.umask(0o002)
    try:
        secret = Tokens(folder).make("ann", SEE)
    finally:
        os.umask(before)
    text = (folder / FILE).read_text()
    assert secret not in text
    assert secret.removeprefix("lct_") not in text
    assert json.loads(text)["version"] == 1
    for path in folder.iterdir():
        assert stat.S_IMODE(path.stat().st_mode) == 0o600, path


@pytest.mark.parametrize(
    "token",
    [
        *("", "lct_", "lct_" + "A" * 43, "A" * 47, "lct_" + "A" * 44, "lct_" + "\u00e9" * 43, "x" * 10**6, "\ud800"),
        *(None, 7, b"lct_"),
    ],
)
def test_what_is_no_token_of_the_pool_is_no_person(folder: Path, token: Any) -> None:
    tokens = Tokens(folder)
    assert tokens.person(token) is None  # a pool without tokens
    secret = tokens.make("ann", SEE)
    assert tokens.person(token) is None
    assert tokens.person(secret[:-1]) is None
    assert tokens.person(secret + "\n") is None
    assert tokens.person(json.loads((folder / FILE).read_text())["tokens"][0]["sha256"]) is None


def test_a_token_of_one_pool_is_worth_nothing_at_another(folder: Path, tmp_path: Path) -> None:
    (other := tmp_path / "other").mkdir(mode=0o700)
    secret = Tokens(folder).make("ann", SEE)
    Tokens(other).make("ann", SEE)
    assert Tokens(other).person(secret) is None


def test_a_token_expires(folder: Path, clock: Clock) -> None:
    tokens = Tokens(folder)
    secret, forever = tokens.make("ann", SEE, 60.0), tokens.make("bob", SEE)
    clock.now += 59.9
    assert tokens.person(secret) is not None
    clock.now += 0.1
    assert tokens.person(secret) is None
    clock.now += 1e9
    assert tokens.person(forever) is not None


def test_a_revoked_token_is_worth_nothing_at_once_in_other_processes_too(folder: Path) -> None:
    serving, tokens = Tokens(folder), Tokens(folder)
    phone, laptop, bob = (tokens.make(name, SEE) for name in ("ann", "ann", "bob"))
    assert serving.person(phone) == serving.person(laptop) == Person("ann", SEE)
    lost = tokens.list()[0].id
    assert tokens.revoke(lost) == 1
    assert (serving.person(phone), serving.person(laptop)) == (None, Person("ann", SEE))
    assert tokens.revoke("ann") == 1
    assert (serving.person(laptop), serving.person(bob)) == (None, Person("bob", SEE))
    assert tokens.revoke("ann") == 0
    (folder / FILE).unlink()
    assert serving.person(bob) is None


def test_a_token_is_compared_with_all_in_constant_time(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The number of comparisons does not depend on whether, or where, one agrees, and none stops at a difference."""
    tokens = Tokens(folder)
    secrets = [tokens.make(f"p{k}", SEE) for k in range(5)]
    calls: list[int] = []

    def compare(one: str, other: str) -> bool:
        calls.append(1)
        return bool(hmac_compare(one, other))

    hmac_compare = hmac.compare_digest
    monkeypatch.setattr(hmac, "compare_digest", compare)
    for token in (secrets[0], secrets[4], "lct_" + "A" * 43):
        calls.clear()
        tokens.person(token)
        assert len(calls) == 5


@pytest.mark.parametrize("name", ["", "a b", "-rf", "../x", "<b>", "ann\n", "\x1b[2J", "x" * 64, "j\u043eb"])
def test_a_hostile_name_is_refused(folder: Path, name: str) -> None:
    with pytest.raises(ValueError, match="invalid name of a person"):
        Tokens(folder).make(name, SEE)
    assert Tokens(folder).list() == ()


@pytest.mark.parametrize(
    "content",
    [
        "", "[]", "{", '{"version": 2, "tokens": []}', '{"version": 1}', '{"version": 1, "tokens": [7]}',
        '{"version": 1, "tokens": [{"name": "ann"}]}', "[" * 10**5,
        of_one(name="<b>"), of_one(rights=["all"]), of_one(sha256=""), of_one(made="now"), of_one(more=1),
    ],
)  # fmt: skip
def test_a_damaged_file_lets_no_person_in(folder: Path, content: str) -> None:
    tokens = Tokens(folder)
    secret = tokens.make("ann", SEE)
    (folder / FILE).write_text(content)
    for _ in range(2):  # nor does what was read before
        with pytest.raises(ValueError, match="is no file of tokens"):
            tokens.person(secret)


def test_a_file_that_another_user_could_change_lets_no_person_in(folder: Path) -> None:
    tokens = Tokens(folder)
    secret = tokens.make("ann", SEE)
    folder.chmod(0o755)
    (folder / FILE).chmod(0o666)
    with pytest.raises(ValueError, match="everyone can write to it"):
        tokens.person(secret)
    (folder / FILE).chmod(0o600)
    assert tokens.person(secret) is not None
    if os.geteuid() == 0:
        os.chown(folder / FILE, OTHER, OTHER)
        with pytest.raises(ValueError, match="belongs to"):
            tokens.person(secret)


def test_tokens_that_are_made_at_the_same_time_are_all_kept(folder: Path) -> None:
    def make(name: str) -> None:
        for _ in range(5):
            Tokens(folder).make(name, SEE)

    threads = [threading.Thread(target=make, args=(name,)) for name in ("ann", "bob", "eve")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(token.name for token in Tokens(folder).list()) == ["ann"] * 5 + ["bob"] * 5 + ["eve"] * 5


def test_there_are_not_too_many(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_TOKENS", 1)
    Tokens(folder).make("ann", SEE)
    with pytest.raises(ValueError, match="tokens must be at most 1, got 2: revoke some"):
        Tokens(folder).make("ann", SEE)


def test_the_commands_make_list_and_revoke(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    where = ["--folder", str(folder)]
    assert main(["token", "new", "ann", "--may", "see,submit", "--expires", "2h", *where]) == 0
    said = capsys.readouterr()
    secret = said.out.strip()
    assert Tokens(folder).person(secret) == Person("ann", rights_of(["see", "submit"]))
    assert "ann may: see, submit." in said.err
    assert "a bundle is code that runs as this account" in said.err
    assert main(["token", "new", "bob", "--expires", "never", *where]) == 0
    capsys.readouterr()
    assert main(["token", "list", *where]) == 0
    listed = capsys.readouterr().out
    assert re.search(r"ann +[0-9a-f]{8} +see, submit +\d{4}-", listed)
    assert re.search(r"bob +[0-9a-f]{8} +none .*never", listed)
    assert secret not in listed
    assert main(["token", "revoke", "ann", *where]) == 0
    assert capsys.readouterr().out == "revoked: 1 token of ann\n"
    assert Tokens(folder).person(secret) is None
    assert main(["token", "revoke", "ann", *where]) == 2
    assert "no token 'ann'" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "error"),
    [
        (["ann", "--may", "steer"], "unknown right 'steer'"),
        (["ann", "--may", "all"], "unknown right 'all'"),
        (["<b>"], "invalid name of a person '<b>'"),
        (["ann", "--expires", "soon"], "soon"),
    ],
)
def test_a_mistake_makes_no_token(
    folder: Path, capsys: pytest.CaptureFixture[str], words: list[str], error: str
) -> None:
    assert main(["token", "new", *words, "--folder", str(folder)]) == 2
    assert error in capsys.readouterr().err
    assert Tokens(folder).list() == ()
