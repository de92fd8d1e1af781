"""Folders and files that only their user can access, and which of them may steer this process.

A user who can write a spec, a note or a journal decides which code runs here, which jobs end and which files go.

Rules of what steers

1. A folder of a run or a pool, and each file in it that steers, belongs to the user of this process, or to root, who
   can do anything as that user anyway.
2. No other user can write to them, nor to a folder on the way, up to ``/``: a user who can rename a folder can put
   another in its place. On the way the sticky bit is enough (``/tmp``), with which only owners rename. Links on the way
   are followed as the kernel follows them, and belong to the user or root as well.
3. The members of a private group are no other users: it is the user's primary group, with the user's name and no other
   member (umask 002 with a group for each user), or the group of root.
4. :data:`TRUST` names others who are trusted with the account: for root in a container with a folder of the host's
   user, for a file system that shows root's files as another user's, for a team whose members trust each other,
   for a volume of a container to which everyone can write.
5. A user namespace shows every user without an id in it as one, the machine's root too. On the way, that one counts as
   root.
6. Reading without steering is allowed: the journal of another user can be replayed and drawn.

Rules of what is made here

1. New folders have mode 0700 and new files 0600. An existing folder keeps its mode.
2. Files are written into the folder that they are meant for: none of the paths that the pool writes is a link.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path, PurePosixPath

from lightning_core.errors import LightningCoreError
from lightning_core.regular_files import read_regular

with suppress(ImportError):  # Windows, where no pool runs and a script trains alone
    import grp
    import pwd

TRUST = "LIGHTNING_CORE_TRUST"
EVERYONE = -1
MAX_LINKS = 40  # as in the kernel
_ALL_IDS = ["0", "0", "4294967295"]
# Paths in the folder of a run or a pool that must not be links. Elsewhere in a job's folder Lightning makes some.
PROTECTED = ("*", "jobs/*", "jobs/*/spec.json", "jobs/*/log*.txt", "jobs/*/checkpoints", "jobs/*/checkpoints/*")


class NotOursError(LightningCoreError, ValueError):
    """A folder or file steers this process, but another user can change it; the message says how to fix that."""


def this_user() -> int:
    """Return the id of the user to whom the files of this process belong."""
    return os.geteuid() if hasattr(os, "geteuid") else 0  # Windows, whose files are all of user 0


def check_ours(folder: Path, entries: Iterable[Path] = ()) -> None:
    """Check that no other user can change a folder or put another in its place.

    A folder that does not exist yet is ours if the way to it is.

    Args:
        folder: Folder of a run or a pool.
        entries: Paths below the folder that are checked too, if they exist.

    Raises:
        NotOursError: If another user can.
        OSError: If that cannot be found out.
    """
    found = _follow(folder)
    try:
        status = found.lstat()
    except (FileNotFoundError, NotADirectoryError):
        return
    check_status(found, status)
    for path in entries:
        with suppress(FileNotFoundError):
            check_status(path, path.lstat(), closed=_is_closed(status))


def check_owners(folder: Path) -> None:
    """Check that only the owner of a folder, this user and root can change it or put another one in its place.

    So the content belongs to the owner, whom this user trusts by having named the folder.

    Raises:
        NotOursError: If another user can.
        OSError: If that cannot be found out.
    """
    owner = folder.stat().st_uid
    found = _follow(folder, owner)
    status = found.lstat()
    _check_owner(found, status, {owner})
    _check_writers(found, status)


def is_ours(folder: Path) -> bool:
    """Return whether :func:`check_ours` accepts a folder."""
    with suppress(NotOursError, OSError):
        check_ours(folder)
        return True
    return False


def check_status(path: Path, status: os.stat_result, *, closed: bool = False) -> None:
    """Check by its status that a folder or file is ours, and that no other user can write to it.

    Args:
        path: Path of the folder or file.
        status: Its status.
        closed: Whether it lies in a folder that only we can enter, so that its own mode does not matter.

    Raises:
        NotOursError: If it is not.
    """
    _check_owner(path, status, {this_user(), 0})
    if not closed:
        _check_writers(path, status)


def read_own(folder: Path, name: str, max_bytes: int) -> bytes:
    """Return the content of a file that steers, in a folder of a run or a pool.

    Each folder from there on is opened relative to its parent, and no link is followed: the files checked are the files
    read.

    Args:
        folder: Folder of the run or the pool.
        name: Path of the file in it.
        max_bytes: Maximum size.

    Raises:
        NotOursError: If another user can change it.
        OSError: If it cannot be read, is not a regular file, or is too large.
    """
    check_ours(folder)
    *between, last = PurePosixPath(name).parts
    flags = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
    with ExitStack() as stack:
        here = folder
        at = os.open(folder, flags)
        stack.callback(os.close, at)
        closed = _is_closed(os.fstat(at))
        for part in between:
            here = here / part
            try:
                at = os.open(part, flags | os.O_NOFOLLOW, dir_fd=at)
            except NotADirectoryError:
                raise NotADirectoryError(errno.ENOTDIR, "it is no folder, or a link", str(here)) from None
            stack.callback(os.close, at)
            check_status(here, status := os.fstat(at), closed=closed)
            closed = closed or _is_closed(status)
        return read_regular(
            last,
            max_bytes,
            dir_fd=at,
            follow_links=False,
            check=lambda status: check_status(here / last, status, closed=closed),
        )


@contextmanager
def owner_only() -> Iterator[None]:
    """Make files and folders that this process creates in the block accessible to the user alone."""
    before = os.umask(0o077)
    try:
        yield
    finally:
        os.umask(before)


def check_private(folder: Path) -> None:
    """Check that a folder, which need not exist, can be that of a run or a pool; nothing is made.

    Raises:
        ValueError: If the folder or one of the protected paths in it is a link, or another user can change it.
        OSError: If that cannot be found out.
    """
    entries = [path for form in PROTECTED for path in folder.glob(form)]
    for path in (folder, *entries):
        if path.is_symlink():
            raise ValueError(
                f"{path}: is a link to {os.readlink(path)}; replace it by a folder or file: links are not followed here"
            )
    check_ours(folder, entries)


def private_folder(folder: Path) -> Path:
    """Return the folder of a run or a pool, created if it does not exist.

    Raises:
        ValueError: If the folder or one of the protected paths in it is a link, or another user can change it.
        OSError: If the folder cannot be created.
    """
    check_private(folder)
    # A umask that lets the group write is for files that are meant for it.
    for parent in reversed([parent for parent in folder.absolute().parents if not parent.exists()]):
        parent.mkdir(exist_ok=True, mode=0o755)
    folder.mkdir(exist_ok=True, mode=0o700)
    return folder


def _is_closed(status: os.stat_result) -> bool:
    """Return whether only its owner can enter a folder."""
    return not status.st_mode & (stat.S_IXGRP | stat.S_IXOTH)


def _follow(folder: Path, also: int = 0) -> Path:
    """Check every folder and link on the way to a folder, and return where it lies.

    Args:
        folder: The folder.
        also: User beside this one and root to whom they may belong.
    """
    here, ahead, links = Path("/"), list(folder.absolute().parts[1:]), 0
    while ahead:
        _check_way(here, also)
        step = here / ahead.pop(0)
        if step.name == "..":
            here = here.parent
            continue
        try:
            status = step.lstat()
        except (FileNotFoundError, NotADirectoryError):
            return step.joinpath(*ahead)
        if not stat.S_ISLNK(status.st_mode):
            here = step
            continue
        _check_owner(step, status, {this_user(), 0, also} | _unmapped())
        links += 1
        if links > MAX_LINKS:
            raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), str(folder))
        to = Path(os.readlink(step))
        ahead[:0] = to.parts[1:] if to.is_absolute() else to.parts
        here = Path("/") if to.is_absolute() else here
    return here


def _check_way(folder: Path, also: int) -> None:
    status = folder.lstat()
    _check_owner(folder, status, {this_user(), 0, also} | _unmapped())
    if not status.st_mode & stat.S_ISVTX:
        _check_writers(folder, status)


def _check_owner(path: Path, status: os.stat_result, accepted: set[int]) -> None:
    users, _ = _trusted()
    if status.st_uid in accepted or not users.isdisjoint({status.st_uid, EVERYONE}):
        return
    owner = _user(status.st_uid)
    raise NotOursError(
        f"{path}: belongs to {owner}, and this process runs as {_user(this_user())}: its owner could run code "
        f"here; use a folder of your own, or, if you trust {owner} with your account, set "
        f"{_trusting(str(status.st_uid))}"
    )


def _check_writers(path: Path, status: os.stat_result) -> None:
    users, groups = _trusted()
    if EVERYONE in users:
        return
    if status.st_mode & stat.S_IWOTH:
        raise NotOursError(
            f"{path}: everyone can write to it, and so run code here as {_user(this_user())}; use a folder of "
            f"your own, let its owner run chmod o-w {path} (on the way to such a folder, chmod +t is enough), or, in a "
            f"container with no other user, set {TRUST}=*"
        )
    group = status.st_gid
    if status.st_mode & stat.S_IWGRP and not _is_private(group) and group not in groups:
        raise NotOursError(
            f"{path}: the members of {_group(group)} can write to it, and so run code here as "
            f"{_user(this_user())}; use a folder of your own that only you can write to, let its owner run "
            f"chmod g-w {path} (on the way to such a folder, chmod +t is enough), or, if you trust all of them with "
            f"your account, set {_trusting(f'@{group}')}"
        )


def _is_private(group: int) -> bool:
    """Return whether no user but this process's user, and root, can be in a group."""
    if group == 0:
        return True
    try:
        user, found = pwd.getpwuid(this_user()), grp.getgrgid(group)
    except KeyError:
        return False
    return group == user.pw_gid and found.gr_name == user.pw_name and set(found.gr_mem) <= {user.pw_name}


def _trusted() -> tuple[set[int], set[int]]:
    """Return the users and groups that :data:`TRUST` names: ids or names, groups with an @, a star for everyone."""
    users, groups = set[int](), set[int]()
    for word in filter(None, map(str.strip, os.environ.get(TRUST, "").split(","))):
        name = word.removeprefix("@")
        try:
            if word == "*":
                users.add(EVERYONE)
            elif word.startswith("@"):
                groups.add(int(name) if name.isdecimal() else grp.getgrnam(name).gr_gid)
            else:
                users.add(int(name) if name.isdecimal() else pwd.getpwnam(name).pw_uid)
        except KeyError:
            raise NotOursError(
                f"{TRUST}: no user or group {word!r}; expected names or ids with commas, groups with an @"
            ) from None
    return users, groups


def _trusting(word: str) -> str:
    """Return the setting that trusts one more user or group besides those already trusted."""
    return f"{TRUST}={','.join(filter(None, (os.environ.get(TRUST, '').strip(), word)))}"


def _unmapped() -> set[int]:
    """Return the id under which this user namespace shows users without an id in it; none where all have one."""
    with suppress(OSError, ValueError):
        if Path("/proc/self/uid_map").read_text().split() != _ALL_IDS:
            return {int(Path("/proc/sys/kernel/overflowuid").read_text())}
    return set()


def _user(number: int) -> str:
    with suppress(KeyError):
        return f"{pwd.getpwuid(number).pw_name} (user {number})"
    return f"user {number}"


def _group(number: int) -> str:
    with suppress(KeyError):
        return f"group {grp.getgrgid(number).gr_name} ({number})"
    return f"group {number}"
