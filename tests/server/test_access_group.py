"""The socket of a group: what other accounts of the machine may do there, and what stays closed to them.

As root, the members are processes of a second account, as the kernel knows it. Otherwise this account plays their part,
and what only the kernel can refuse is skipped.
"""

from __future__ import annotations

import contextlib
import grp
import io
import os
import shutil
import stat
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from lightning_core.cli.main import main
from lightning_core.cli.pool_file import _group
from lightning_core.cli.run_in_pool import run_in_pool
from lightning_core.core.commands import Cancel, Pause
from lightning_core.core.events import Close
from lightning_core.core.jobs import Capability, Job
from lightning_core.core.targets import BatchTarget
from lightning_core.pool import Pool as Client
from lightning_core.server.access import accounts
from lightning_core.server.access.accounts import Peer, account_of
from lightning_core.server.access.groups import GroupSocket, group_socket, socket_in
from lightning_core.server.access.people import ALL_RIGHTS, Person, Right, rights_of
from lightning_core.server.clients.socket_client import SocketClient
from lightning_core.server.connections import Connections
from lightning_core.storage.private_files import NotOursError
from tests.builders import spec
from tests.others import OTHER, OtherUserError, as_other, as_root
from tests.socket_servers import Pool

ROOT = os.geteuid() == 0
GROUP = OTHER + 1 if ROOT else os.getgid()
THIRD = OTHER + 2
MEMBER = account_of(OTHER if ROOT else os.geteuid())
ME = account_of(os.geteuid())

Open = Callable[..., Pool]


@pytest.fixture
def shared(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder that all users can enter, and a group ``team`` on this machine."""
    monkeypatch.setattr(grp, "getgrnam", {"team": SimpleNamespace(gr_gid=GROUP)}.__getitem__)
    monkeypatch.setattr(grp, "getgrall", lambda: [SimpleNamespace(gr_name="team")])
    with tempfile.TemporaryDirectory(prefix="lc-") as folder:
        Path(folder).chmod(0o711)
        yield Path(folder)


@pytest.fixture
def opened(shared: Path, tmp_path: Path) -> Iterator[Open]:
    """Opens a pool to the group, whose members may do what is said."""
    made: list[Pool] = []

    def open_pool(*rights: str) -> Pool:
        (private := shared / "private").mkdir(mode=0o700)
        group = group_socket("team", shared / "team", rights_of(rights))
        made.append(Pool(tmp_path / "a pool", private / "socket", group=group))
        return made[-1]

    yield open_pool
    for pool in made:
        pool.close()


@pytest.fixture
def member(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[], Any]], Any]:
    """Does something as a member of the group."""
    if ROOT:
        return lambda act: as_other(act, [GROUP])

    def act_here(act: Callable[[], Any]) -> Any:
        monkeypatch.setattr(accounts, "os", SimpleNamespace(geteuid=lambda: -1))
        try:
            return act()
        except Exception as error:
            raise OtherUserError(f"{type(error).__name__}: {error}") from None

    return act_here


def team(pool: Pool) -> SocketClient:
    assert pool.group is not None
    return SocketClient(pool.group.path)


def owners(pool: Pool) -> dict[str, str]:
    return {job.name: job.owner for job in pool.do(pool.actor.status())[1]}


# ---------------------------------------------------------------------------------------------------- members


def test_a_member_is_known_by_its_account_and_has_the_rights_of_the_group(opened: Open, member: Any) -> None:
    pool = opened("see", "steer-own")
    assert member(lambda: team(pool).about()["person"]) == {"name": MEMBER, "rights": ["see", "steer-own"]}


def test_a_member_who_may_see_sees_all_and_one_who_may_not_sees_their_own(opened: Open, member: Any) -> None:
    pool = opened("submit")
    pool.do(pool.actor.launch([spec("mine")]))
    member(lambda: team(pool).launch([spec("theirs")]))
    assert member(lambda: [job.name for job in team(pool).status()[1]]) == ["theirs"]
    assert owners(pool) == {"mine": "", "theirs": MEMBER}
    assert pool.group is not None
    pool.group = pool.group._replace(rights=frozenset({Right.SEE}))
    pool.restart()
    assert member(lambda: [job.name for job in team(pool).status()[1]]) == ["mine", "theirs"]


def test_a_member_steers_their_own_jobs_and_no_others(opened: Open, member: Any) -> None:
    pool = opened("see", "submit", "steer-own")
    pool.do(pool.actor.launch([spec("mine")]))
    member(lambda: team(pool).launch([spec("theirs")]))
    member(lambda: team(pool).event(Pause("theirs", who=ME)))
    told = {job.name: str(job.grant_reason) for job in pool.do(pool.actor.status())[1]}
    assert told["theirs"] == f"paused by {MEMBER}"
    with pytest.raises(OtherUserError, match="AccessRefusedError: mine belongs to an unknown owner; to change it"):
        member(lambda: team(pool).event(Cancel("mine")))
    with pytest.raises(OtherUserError, match=f"AccessRefusedError: {MEMBER} needs the right steer-all"):
        member(lambda: team(pool).event(Close("bye")))


def test_a_member_who_may_only_see_submits_nothing(opened: Open, member: Any) -> None:
    pool = opened("see")
    with pytest.raises(OtherUserError, match=f"AccessRefusedError: {MEMBER} needs the right submit, and has see"):
        member(lambda: team(pool).launch([spec("theirs")]))
    assert owners(pool) == {}


def test_a_script_of_a_member_cannot_join_and_so_trains_alone(opened: Open, member: Any) -> None:
    """Waiting would change nothing, so it is told that the device is not shared."""
    pool = opened(*Right)
    script = Job("script", 600.0, BatchTarget(1000), can=frozenset({Capability.TIME_SLICE, Capability.HOLD}))
    with pytest.raises(OtherUserError, match=f"DeviceNotSharedError: scripts take turns .* belongs to {MEMBER}"):
        member(lambda: team(pool).join(script, "cpu"))
    assert owners(pool) == {}


@pytest.mark.parametrize("name", [ME, "ann", MEMBER])
def test_a_member_cannot_speak_for_anyone(opened: Open, member: Any, name: str) -> None:
    """Not for the pool's account, nor for another one, nor for itself with more rights."""
    pool = opened("see")

    def forged() -> object:
        assert pool.group is not None
        return SocketClient(pool.group.path, Person(name, ALL_RIGHTS)).status()

    words = f"AccessRefusedError: only the pool's own account may speak for others, and you are {MEMBER}"
    with pytest.raises(OtherUserError, match=words):
        member(forged)


def test_the_pools_own_account_may_do_everything_on_either_socket(opened: Open) -> None:
    pool = opened()
    for client in (SocketClient(pool.path), team(pool)):
        with Client(client) as own:
            assert own.person == Person(ME, ALL_RIGHTS)


# ---------------------------------------------------------------------------------------------------- commands


def said(*words: str) -> tuple[int, str, str]:
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = main(words)
    return code, out.getvalue(), err.getvalue()


def test_members_find_the_pool_by_the_folder_of_their_socket(opened: Open, member: Any, shared: Path) -> None:
    pool, where = opened("see", "steer-own"), ["--pool", str(shared / "team")]
    pool.do(pool.actor.launch([spec("mine")]))
    said("status", *where)  # imports what the other user may not be able to read
    code, out, _ = member(lambda: said("status", *where))
    assert code == 0
    assert "mine" in out
    assert member(lambda: said("status", "--mine", *where))[1] == f"no jobs of {MEMBER}\n"
    assert member(lambda: said("status", "--json", *where))[0] == 0
    code, _, err = member(lambda: said("cancel", "mine", *where))
    assert (code, "needs the right steer-all" in err) == (2, True)


@as_root
def test_members_are_told_why_by_the_pool_whose_files_are_closed_to_them(opened: Open, shared: Path) -> None:
    pool, where = opened("see"), ["--pool", str(shared / "team")]
    pool.do(pool.actor.launch([spec("mine")]))
    before = said("why", "mine", *where)[1]
    assert "submitted" in before
    code, out, err = as_other(lambda: said("why", "mine", *where), [GROUP])
    assert code == 0
    assert out.splitlines()[0].startswith("mine: ")
    assert out.splitlines()[1] == "queued, 1.00 of device 0: one of 1 equal shares"
    assert "submitted" not in out
    assert "which this account cannot read" in err
    code, _, err = as_other(lambda: said("logs", "mine", *where), [GROUP])
    assert (code, "only the pool's own account can read its files" in err) == (2, True)


@as_root
def test_what_reads_files_of_the_pool_says_that_they_are_closed(opened: Open) -> None:
    """Before anything is submitted, or listens."""
    from lightning_core.parts.web.web_server import serve

    pool, none = opened(*Right), cast(Any, None)
    for act in (
        lambda: run_in_pool(Client(team(pool)), none, none),
        lambda: serve(Client(team(pool)), none, ()),
        lambda: Client(team(pool)).reasons("mine"),
    ):
        with pytest.raises(OtherUserError, match=r"NotOnThisMachineError: .*only the pool's own account can read"):
            as_other(act, [GROUP])


# ---------------------------------------------------------------------------------------------------- the kernel


@as_root
def test_who_is_not_in_the_group_does_not_reach_the_socket(opened: Open) -> None:
    pool = opened(*Right)
    with pytest.raises(OtherUserError, match="Permission denied"):
        as_other(lambda: team(pool).status(), [GROUP + 1])


@as_root
def test_members_reach_nothing_but_their_socket(opened: Open, shared: Path) -> None:
    pool = opened(*Right)
    refused: list[Callable[[], Any]] = [
        lambda: SocketClient(pool.path).status(),
        lambda: (pool.folder / "journal.db").read_bytes(),
        lambda: list((shared / "team").iterdir()),
        lambda: (shared / "team" / "socket").unlink(),
        lambda: (shared / "team" / "socket").rename(shared / "team" / "other"),
        lambda: (shared / "team" / "other").touch(),
        lambda: (shared / "team").rename(shared / "other"),
        lambda: (shared / "team" / "socket").chmod(0o777),
    ]
    for act in refused:
        with pytest.raises(OtherUserError, match=r"Permission denied|Operation not permitted"):
            as_other(act, [GROUP])
    assert as_other(lambda: team(pool).about()["person"]["name"], [GROUP]) == MEMBER


@as_root
def test_a_socket_that_another_account_could_have_put_there_is_not_connected_to(opened: Open, shared: Path) -> None:
    opened("see")
    team_folder = shared / "team"
    as_other(lambda: str(socket_in(team_folder)), [GROUP])
    team_folder.chmod(0o770)  # each member could now replace it
    with pytest.raises(OtherUserError, match=r"NotOursError: .*the members of group"):
        as_other(lambda: str(socket_in(team_folder)), [GROUP])
    team_folder.chmod(0o710)
    os.chown(shared, THIRD, THIRD)  # who owns a folder on the way can put another one there
    with pytest.raises(OtherUserError, match=f"NotOursError: .*belongs to user {THIRD}"):
        as_other(lambda: str(socket_in(team_folder)), [GROUP])
    with pytest.raises(OtherUserError, match=f"PoolUnavailableError: .*belongs to user {THIRD}"):
        as_other(lambda: repr(Client.connect(str(team_folder))), [GROUP])
    os.chown(shared, 0, 0)


# ---------------------------------------------------------------------------------------------------- the socket


def test_the_folder_can_be_entered_by_the_group_and_nothing_else(opened: Open, shared: Path) -> None:
    opened("see")
    folder, path = (shared / "team").stat(), (shared / "team" / "socket").stat()
    assert (stat.S_IMODE(folder.st_mode), folder.st_gid) == (0o710, GROUP)
    assert (stat.S_IMODE(path.st_mode), path.st_gid) == (0o660, GROUP)
    assert stat.S_IMODE((shared / "private" / "socket").stat().st_mode) == 0o600


def test_the_socket_is_there_again_after_a_restart_and_goes_with_the_pool(opened: Open, shared: Path) -> None:
    pool = opened("see")
    pool.restart()
    assert team(pool).status()[1] == []
    pool.do(pool.actor.close())
    assert not (shared / "team" / "socket").exists()
    assert group_socket("team", shared / "team", frozenset()).gid == GROUP  # the next pool takes the folder again


def test_a_pool_whose_group_folder_has_gone_goes_on_for_its_own_account(
    opened: Open, shared: Path, caplog: pytest.LogCaptureFixture
) -> None:
    pool = opened("see")
    pool.do(pool.actor.close())
    shutil.rmtree(shared / "team")
    pool.actor = pool._make_actor()
    assert SocketClient(pool.path).status()[1] == []
    assert "members of the group cannot reach the pool" in caplog.text


def test_all_processes_of_a_member_share_one_budget() -> None:
    """Else an account could start processes to push out those of others."""
    connections, transport = Connections(), SimpleNamespace()

    def admitted(pid: int, name: str, *, of_group: bool) -> Any:
        peer = Peer(pid, Person(name, frozenset()), of_group=of_group)
        connection = connections.admit(peer, transport, 0.0)  # type: ignore[arg-type]
        assert connection is not None
        return connection.process

    ann = admitted(11, "ann", of_group=True)
    assert admitted(12, "ann", of_group=True) is ann
    assert admitted(12, "bob", of_group=True) is not ann
    assert admitted(11, "ann", of_group=False) is not admitted(12, "ann", of_group=False)


# ---------------------------------------------------------------------------------------------------- options


def opened_to(name: str, folder: Path, **terms: object) -> GroupSocket | None:
    return _group({"name": name, "folder": str(folder), **terms}, Path())


def test_members_may_see_unless_more_is_said(shared: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert _group(None, Path()) is None
    assert opened_to("team", shared / "team") == GroupSocket(shared / "team" / "socket", GROUP, frozenset({Right.SEE}))
    assert capsys.readouterr().err == ""
    made = opened_to("team", shared / "team", may=["submit", "steer-own"])
    assert made is not None
    assert made.rights == rights_of(["submit", "steer-own"])
    assert "a bundle is code that runs as this account" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("section", "error"),
    [
        ("team", "expected name, folder .* and may .*, got 'team'"),
        ({"name": "team"}, "expected name, folder"),
        ({"name": "taem", "folder": "FOLDER"}, "no group 'taem' on this machine; did you mean 'team'?"),
        ({"name": "team\x1b", "folder": "FOLDER"}, r"no group 'team\\x1b' on this machine"),
        ({"name": "team", "folder": "FOLDER", "may": "all"}, "unknown right 'all'"),
        ({"name": "team", "folder": "x" * 107}, "a socket must have at most 107 bytes"),
        ({"name": "team", "folder": "FULL"}, "must be new or hold only a socket, and .* has 'notes'"),
        ({"name": "team", "folder": "LINK"}, "is a link to"),
    ],
)
def test_a_mistake_opens_nothing(shared: Path, section: Any, error: str) -> None:
    (shared / "full").mkdir(mode=0o700)
    (shared / "full" / "notes").touch()
    (shared / "link").symlink_to(shared / "full")
    paths = {"FOLDER": "new", "FULL": "full", "LINK": "link"}
    if isinstance(section, dict) and "folder" in section:
        section = section | {"folder": paths.get(section["folder"], section["folder"])}
    with pytest.raises(ValueError, match=error):
        _group(section, shared)
    assert stat.S_IMODE((shared / "full").stat().st_mode) == 0o700
    assert not (shared / "new").exists()


def test_an_account_that_is_not_in_the_group_opens_no_folder_to_it(
    shared: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(*_: object) -> None:
        raise PermissionError

    monkeypatch.setattr(os, "chown", refused)
    with pytest.raises(ValueError, match="this account is not in the group team"):
        opened_to("team", shared / "team")
    assert stat.S_IMODE((shared / "team").stat().st_mode) == 0o700


def test_a_folder_that_others_can_change_is_not_opened(shared: Path) -> None:
    (shared / "team").mkdir()
    (shared / "team").chmod(0o777)
    with pytest.raises(NotOursError, match="everyone can write to it"):
        opened_to("team", shared / "team")
