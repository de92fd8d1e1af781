"""Folders and files of other users do not steer."""

from __future__ import annotations

import grp
import json
import os
import pwd
import shutil
import socket
import stat
from pathlib import Path
from types import SimpleNamespace

import pytest

from lightning_core.storage import private_files as ownership
from lightning_core.storage.job_specs import FILE, read, sha256, store
from lightning_core.storage.private_files import (
    TRUST,
    NotOursError,
    check_ours,
    is_ours,
    owner_only,
    private_folder,
    read_own,
)
from tests.others import OTHER, as_root, give_away


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder of ours, with a parent of ours."""
    made = tmp_path / "team" / "pool"
    made.mkdir(parents=True, mode=0o700)
    made.parent.chmod(0o755)
    return made


def test_a_folder_of_this_user_is_accepted_whether_it_exists_or_not(folder: Path) -> None:
    check_ours(folder)
    check_ours(folder / "new" / "newer")


@pytest.mark.promise("S13")
def test_a_folder_of_another_user_is_refused_and_says_what_to_do(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    owner = OTHER if os.geteuid() == 0 else os.geteuid()
    give_away(folder, monkeypatch)
    with pytest.raises(NotOursError) as said:
        check_ours(folder)
    for words in (f"user {owner}", f"user {ownership.this_user()}", "use a folder of your own", f"{TRUST}={owner}"):
        assert words in str(said.value)
    if os.geteuid() == 0:
        assert str(said.value).startswith(f"{folder}: belongs to")
    monkeypatch.setenv(TRUST, f"12345, {owner}")
    check_ours(folder)


@as_root
def test_a_folder_on_the_way_of_another_user_is_refused(folder: Path) -> None:
    os.chown(folder.parent, OTHER, OTHER)
    with pytest.raises(NotOursError, match=f"{folder.parent}: belongs to user {OTHER}"):
        check_ours(folder)
    with pytest.raises(NotOursError):
        check_ours(folder / "new")


@pytest.mark.promise("S13")
@pytest.mark.parametrize(
    ("mode", "words"),
    [
        (0o777, "everyone can write to it.*chmod o-w"),
        (0o757, "everyone can write to it.*chmod o-w"),
        (0o2775, r"the members of group .* can write to it.*chmod g-w .*chmod \+t .*LIGHTNING_CORE_TRUST=@"),
        (0o1777, ""),
        (0o3775, ""),
        (0o755, ""),
    ],
)
def test_a_folder_on_the_way_that_others_can_write_to_is_refused_without_the_sticky_bit(
    mode: int, words: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ownership, "_is_private", lambda group: False)
    folder.parent.chmod(mode)
    if not words:
        return check_ours(folder)
    with pytest.raises(NotOursError, match=words):
        check_ours(folder)


@pytest.mark.parametrize("mode", [0o777, 0o1777, 0o775])
def test_the_folder_itself_is_refused_with_the_sticky_bit_too(
    mode: int, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Others could put notes into it that are not there yet."""
    monkeypatch.setattr(ownership, "_is_private", lambda group: False)
    folder.chmod(mode)
    with pytest.raises(NotOursError, match="can write to it"):
        check_ours(folder)


def test_a_team_that_is_trusted_may_write(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ownership, "_is_private", lambda group: False)
    folder.parent.chmod(0o2775)
    monkeypatch.setenv(TRUST, f"@{folder.parent.stat().st_gid}")
    check_ours(folder)
    folder.parent.chmod(0o2777)
    with pytest.raises(NotOursError, match=r"everyone.* in a container with no other user, set .*=\*"):
        check_ours(folder)


def test_what_is_to_be_trusted_is_named_beside_what_is_trusted_already(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ownership, "_is_private", lambda group: False)
    folder.parent.chmod(0o2775)
    monkeypatch.setenv(TRUST, "12345")
    with pytest.raises(NotOursError, match=f"set {TRUST}=12345,@{folder.parent.stat().st_gid}$"):
        check_ours(folder)


def test_in_a_container_everyone_may_be_trusted(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As with an emptyDir of Kubernetes, which has mode 0777."""
    give_away(folder, monkeypatch)
    folder.parent.chmod(0o777)
    monkeypatch.setenv(TRUST, "*")
    check_ours(folder)


def test_trust_in_an_unknown_name_is_an_error(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder.parent.chmod(0o777)
    folder.parent.chmod(0o770)
    monkeypatch.setattr(ownership, "_is_private", lambda group: False)
    monkeypatch.setenv(TRUST, "@no-such-group")
    with pytest.raises(NotOursError, match="no user or group '@no-such-group'"):
        check_ours(folder)


@pytest.mark.parametrize(
    ("group", "name", "members", "private"),
    [
        (1000, "alice", [], True),
        (1000, "alice", ["alice"], True),
        (1000, "alice", ["alice", "bob"], False),
        (1000, "users", [], False),  # each account's primary group: nothing lists its members
        (100, "alice", [], False),
        (0, "root", ["admin"], True),
    ],
)
def test_the_group_of_a_user_alone_is_private(
    group: int, name: str, members: list[str], private: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pwd, "getpwuid", lambda _: SimpleNamespace(pw_name="alice", pw_gid=1000))
    monkeypatch.setattr(grp, "getgrgid", lambda _: SimpleNamespace(gr_name=name, gr_mem=members))
    assert ownership._is_private(group) is private


def test_a_user_without_an_account_has_no_private_group(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a container with an arbitrary user."""
    monkeypatch.setattr(ownership, "this_user", lambda: 2**31 - 7)
    assert not ownership._is_private(1000)


@as_root
def test_users_without_an_id_in_a_namespace_count_as_root_on_the_way_alone(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    os.chown(folder.parent, OTHER, OTHER)
    monkeypatch.setattr(ownership, "_unmapped", lambda: {OTHER})
    check_ours(folder)
    os.chown(folder, OTHER, OTHER)
    with pytest.raises(NotOursError):
        check_ours(folder)


def test_links_on_the_way_are_followed_and_what_they_lead_through_is_checked(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(folder.parent)
    (tmp_path / "relative").symlink_to("team/../team")
    check_ours(tmp_path / "link" / "pool")
    check_ours(tmp_path / "relative" / "pool")
    folder.parent.chmod(0o777)
    for name in ("link", "relative"):
        with pytest.raises(NotOursError, match=f"{folder.parent}: everyone"):
            check_ours(tmp_path / name / "pool")
    (tmp_path / "circle").symlink_to("circle")
    with pytest.raises(OSError, match="Too many levels"):
        check_ours(tmp_path / "circle" / "pool")


@as_root
def test_a_link_of_another_user_is_refused(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(folder.parent)
    os.lchown(tmp_path / "link", OTHER, OTHER)
    with pytest.raises(NotOursError, match="link: belongs to"):
        check_ours(tmp_path / "link" / "pool")


@as_root
def test_files_of_root_steer_every_user(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder.chmod(0o755)
    monkeypatch.setattr(ownership, "this_user", lambda: OTHER)
    check_ours(folder)


@pytest.mark.promise("S13")
@as_root
@pytest.mark.parametrize("name", ["head.json", "jobs/a", "jobs/a/spec.json"])
def test_an_entry_of_another_user_is_refused(name: str, folder: Path) -> None:
    (folder / "jobs" / "a").mkdir(parents=True)
    for entry in ("head.json", "jobs/a/spec.json"):
        (folder / entry).write_text("{}")
    private_folder(folder)
    os.chown(folder / name, OTHER, OTHER)
    with pytest.raises(NotOursError, match=f"{folder / name}: belongs to"):
        private_folder(folder)
    with pytest.raises(NotOursError):
        read_own(folder, name if name.endswith(".json") else f"{name}/spec.json", 100)


def test_a_note_that_others_can_write_is_refused_where_they_can_enter(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ownership, "_is_private", lambda group: False)
    (folder / "head.json").write_text("{}")
    (folder / "head.json").chmod(0o664)
    assert read_own(folder, "head.json", 100) == b"{}"
    folder.chmod(0o755)
    with pytest.raises(NotOursError, match=r"head\.json: the members of group"):
        read_own(folder, "head.json", 100)


def test_new_folders_are_private_and_their_parents_not_the_group_s(tmp_path: Path) -> None:
    before = os.umask(0o002)
    try:
        made = private_folder(tmp_path / "home" / "pool")
    finally:
        os.umask(before)
    assert stat.S_IMODE(made.stat().st_mode) == 0o700
    assert stat.S_IMODE(made.parent.stat().st_mode) == 0o755


# ---------------------------------------------------------------------------------------------------- what is read


def spec(name: str = "a") -> dict[str, object]:
    return {
        "job": {
            "name": name, "deadline": 60.0, "target": {"batches": 10},
            "can": ["hold", "release", "time_slice"],
        },
        "config": {}, "cell": 10, "save_every": 60.0, "keep_best": False, "hang": None, "paths": [],
    }  # fmt: skip


@pytest.fixture
def pool(folder: Path) -> tuple[Path, str]:
    """A pool with a job that was submitted, and the digest that the journal has."""
    with owner_only():
        [job] = store([spec()], folder, set())  # type: ignore[list-item]
    return folder, job.spec_sha256


def test_the_spec_that_was_submitted_is_read(pool: tuple[Path, str]) -> None:
    folder, digest = pool
    assert digest == sha256((folder / "jobs" / "a" / FILE).read_text())
    assert read(folder, "a", digest) == spec()


@pytest.mark.promise("S13")
def test_a_spec_that_was_replaced_is_refused(pool: tuple[Path, str]) -> None:
    folder, digest = pool
    shutil.move(folder / "jobs" / "a", folder / "away")
    (folder / "jobs" / "a").mkdir()
    (folder / "jobs" / "a" / FILE).write_text((folder / "away" / FILE).read_text().replace("60.0", "61.0"))
    with pytest.raises(ValueError, match="is not the spec that was submitted: its SHA-256 is not the one in the jour"):
        read(folder, "a", digest)


def test_a_spec_that_lacks_a_key_names_it(pool: tuple[Path, str]) -> None:
    folder, _ = pool
    text = json.dumps({key: value for key, value in spec().items() if key != "hang"})
    (folder / "jobs" / "a" / FILE).write_text(text)
    with pytest.raises(ValueError, match=r"a/spec\.json has no hang; submit the job again"):
        read(folder, "a", sha256(text))


def test_links_pipes_and_large_files_are_no_specs(pool: tuple[Path, str]) -> None:
    folder, digest = pool
    home = folder / "jobs" / "a"
    text = (home / FILE).read_text()
    shutil.move(home, folder / "away")
    home.symlink_to(folder / "away")
    with pytest.raises(ValueError, match="it is no folder, or a link"):
        read(folder, "a", digest)
    home.unlink()
    home.mkdir()
    (home / FILE).symlink_to(folder / "away" / FILE)
    with pytest.raises(ValueError, match="it is a link"):
        read(folder, "a", digest)
    (home / FILE).unlink()
    os.mkfifo(home / FILE)
    with pytest.raises(ValueError, match="it is a pipe; expected a regular file"):
        read(folder, "a", digest)
    (home / FILE).unlink()
    with socket.socket(socket.AF_UNIX) as listener:
        here = os.getcwd()
        os.chdir(home)  # a socket's path is short
        try:
            listener.bind(FILE)
        finally:
            os.chdir(here)
    with pytest.raises(ValueError, match="it is a socket"):
        read(folder, "a", digest)
    (home / FILE).unlink()
    with (home / FILE).open("w") as file:
        file.write(text)
        file.truncate(100 * 10**9)
    with pytest.raises(ValueError, match="larger than 1,048,576 bytes"):
        read(folder, "a", digest)


def test_is_ours_is_false_where_it_cannot_be_found_out(tmp_path: Path) -> None:
    (tmp_path / "circle").symlink_to("circle")
    assert not is_ours(tmp_path / "circle" / "pool")


def test_folders_are_removed_without_following_links() -> None:
    """Ended incarnations and the folder of a head are removed so."""
    assert shutil.rmtree.avoids_symlink_attacks
