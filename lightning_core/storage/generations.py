"""Files that cannot be lost: written beside their place, renamed when whole, with a manifest, the newest ones kept.

Beside a file ``last.ckpt`` lies its manifest ``last.ckpt.json``; the generation before it is ``last.ckpt.1`` with a
manifest of its own, and so on.

Rules

1. A generation is *sound* if its size and SHA-256 are those that its manifest says. If one was before a save, one is at
   every moment of it and after it, whoever is killed and whichever call fails.
2. The new file is written under another name in the same folder, never on another file system, and synced. Then the
   older ones move up by a link, only if the newest of them is sound; the folder is synced; the new file takes its place
   by a rename, its manifest after it.
3. What is read is what was checked: one file is opened once.
4. A writer holds a lock on its unfinished file, and the kernel drops that lock when it dies. Unfinished files without a
   lock are litter.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import json
import math
import os
import re
import shutil
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any, NamedTuple, cast

from lightning_core.errors import LightningCoreError

FORMAT = 1
# Longer than any manifest.
_LONGEST = 4096
_LITTER = re.compile(r".+\.part-\d+-[0-9a-f]{8}")
_SHA256 = re.compile(r"[0-9a-f]{64}")
# What a file system says that has no hard links, or no more of them.
_NO_LINKS = frozenset({errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK, errno.EXDEV, errno.EACCES})


class CorruptCheckpointError(LightningCoreError, ValueError):
    """A checkpoint file does not match its manifest; the message says how."""


class TransientReadError(CorruptCheckpointError):
    """A checkpoint file exists but cannot be read now; a later attempt may succeed."""


class Manifest(NamedTuple):
    """What is known of a file since it was written."""

    sha256: str
    size: int
    """In bytes."""
    step: int | None = None
    """Steps of the optimiser that were done."""
    batches: int | None = None
    """Batches that were done."""
    value: float | None = None
    """Of a metric, for the sake of which the file was kept."""


def manifest_of(path: Path) -> Path:
    """Where the manifest of a file lies."""
    return path.with_name(f"{path.name}.json")


def generation(path: Path, age: int) -> Path:
    """Where the file lies that was at a place so many saves ago."""
    return path.with_name(f"{path.name}.{age}") if age else path


def generations(path: Path) -> list[Path]:
    """A place, and the older generations that lie beside it, the newest first."""
    form = re.compile(re.escape(path.name) + r"\.([1-9]\d{0,3})")
    with suppress(OSError):
        ages = sorted(int(match[1]) for match in map(form.fullmatch, os.listdir(path.parent)) if match)
        return [path, *(generation(path, age) for age in ages)]
    return [path]


# ---------------------------------------------------------------------------------------------------- reading


def read_manifest(path: Path) -> Manifest | None:
    """The manifest of a file; None if there is none.

    Raises:
        CorruptCheckpointError: if it cannot be made use of.
    """
    try:
        with manifest_of(path).open("rb") as file:
            found = json.loads(file.read(_LONGEST))
    except FileNotFoundError:
        return None
    except OSError as error:
        raise TransientReadError(f"its manifest cannot be read: {error.strerror}") from None
    except (ValueError, RecursionError):
        raise CorruptCheckpointError("its manifest is damaged") from None
    if not isinstance(found, dict):
        raise CorruptCheckpointError("its manifest is damaged")
    if (form := found.get("format")) != FORMAT:
        raise CorruptCheckpointError(f"its manifest is of format {form!r}, this version reads {FORMAT}")
    sha256, size, step, batches, value = (found.get(key) for key in Manifest._fields)
    whole = isinstance(sha256, str) and _SHA256.fullmatch(sha256) and _is_count(size)
    if not whole or not all(count is None or _is_count(count) for count in (step, batches)):
        raise CorruptCheckpointError("its manifest is damaged")
    if value is not None and not (type(value) in (int, float) and math.isfinite(value)):
        raise CorruptCheckpointError("its manifest is damaged")
    return Manifest(cast(str, sha256), cast(int, size), step, batches, value)


def _as_text(manifest: Manifest) -> bytes:
    known = {key: found for key, found in manifest._asdict().items() if key != "value" or found is not None}
    return json.dumps({"format": FORMAT, **known}).encode()


def _is_count(value: object) -> bool:
    return type(value) is int and value >= 0


@contextmanager
def opened(path: Path) -> Iterator[tuple[IO[bytes], Manifest | None]]:
    """A file at its beginning, with its manifest: sound, or without a manifest.

    Raises:
        CorruptCheckpointError: if it is missing, no file, or not what its manifest says.
    """
    try:
        # Not blocking: it might be a pipe.
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        raise CorruptCheckpointError("missing") from None
    except OSError as error:
        raise TransientReadError(f"cannot be read: {error.strerror}") from None
    kind = os.fstat(descriptor)
    if not stat.S_ISREG(kind.st_mode):
        os.close(descriptor)
        raise CorruptCheckpointError(f"cannot be read: it is {'a folder' if stat.S_ISDIR(kind.st_mode) else 'no file'}")
    with os.fdopen(descriptor, "rb") as file:
        manifest = read_manifest(path)
        if manifest is not None:
            if kind.st_size < manifest.size:
                raise CorruptCheckpointError(f"truncated ({megabytes(kind.st_size)} of {megabytes(manifest.size)} MB)")
            try:
                same = hashlib.file_digest(file, "sha256").hexdigest() == manifest.sha256
            except OSError as error:
                raise TransientReadError(f"cannot be read: {error.strerror}") from None
            if not same or kind.st_size != manifest.size:
                raise CorruptCheckpointError("does not match its manifest")
            file.seek(0)
        yield file, manifest


def check(path: Path) -> Manifest:
    """The manifest of a sound file.

    Raises:
        CorruptCheckpointError: if it is not sound.
    """
    with opened(path) as (_, manifest):
        if manifest is None:
            raise CorruptCheckpointError("has no manifest")
        return manifest


def sound(path: Path) -> bool:
    """Whether a file is what its manifest says."""
    try:
        check(path)
    except CorruptCheckpointError:
        return False
    return True


def newest(path: Path) -> tuple[Path, Manifest] | None:
    """The newest sound generation of a place."""
    for place in generations(path):
        with suppress(CorruptCheckpointError):
            return place, check(place)
    return None


def megabytes(size: float) -> str:
    """A size in bytes, for people.

    Example::

        >>> megabytes(381e6), megabytes(12_345)
        ('381', '0.0123')
    """
    return f"{size / 1e6:.0f}" if size >= 1e8 else f"{size / 1e6:.3g}"


# ---------------------------------------------------------------------------------------------------- writing


class Generations:
    """Saves files so that the newest of each are kept.

    Args:
        keep: how many generations of a place there are, the newest among them.

    Raises:
        ValueError: if it is less than 2: with one there are moments in which nothing is sound.

    Example::

        >>> folder = getfixture("tmp_path")
        >>> saver, place = Generations(), folder / "state"
        >>> for text in b"old", b"new":
        ...     manifest = saver.save(place, lambda file: file.write(text), step=7)
        >>> sorted(path.name for path in folder.iterdir())
        ['state', 'state.1', 'state.1.json', 'state.json']
        >>> manifest.size, check(place) == manifest
        (3, True)
    """

    def __init__(self, keep: int = 2) -> None:
        if keep < 2:
            raise ValueError(f"keep must be at least 2, got {keep}")
        self._keep = keep
        self._own: dict[Path, tuple[int, ...]] = {}

    def save(
        self,
        path: Path,
        write: Callable[[IO[bytes]], object],
        *,
        step: int | None = None,
        batches: int | None = None,
        value: float | None = None,
        size: Callable[[], int] | None = None,
        look: Callable[[Path], object] | None = None,
    ) -> Manifest:
        """Writes a file; the one that is there becomes the generation before it.

        Args:
            path: its place.
            write: writes it, front to back.
            step: for the manifest.
            batches: for the manifest.
            value: for the manifest; finite.
            size: about how many bytes will be written; asked if they could not be.
            look: at the file when it is whole, and not yet at its place; what it raises keeps it from that.

        Raises:
            OSError: if it cannot be written; the message says where, and how much room there is. Every generation that
                was sound is.
        """
        try:
            _make_folder(path.parent)
            sweep(path.parent)
            return self._save(path, write, (step, batches, value), look)
        except OSError as error:
            self._own.pop(path, None)
            raise OSError(error.errno, f"{path} cannot be saved: {_words(error, path.parent, size)}") from error

    def remove(self, path: Path) -> None:
        """Removes all generations of a place, the oldest first."""
        self._own.pop(path, None)
        for place in reversed(generations(path)):
            place.unlink(missing_ok=True)
            manifest_of(place).unlink(missing_ok=True)

    def _save(
        self,
        path: Path,
        write: Callable[[IO[bytes]], object],
        known: tuple[int | None, int | None, float | None],
        look: Callable[[Path], object] | None,
    ) -> Manifest:
        with _unfinished(path) as (part, file):
            sink = _Hashing(file)
            try:
                write(cast(IO[bytes], sink))
            except Exception:
                if sink.error is not None:  # torch tells of a full disk in terms of its own
                    raise sink.error from None
                raise
            manifest = Manifest(sink.hash.hexdigest(), sink.size, *known)
            _sync(file)
            if look is not None:
                look(part)
            with _unfinished(manifest_of(path)) as (note, text):
                text.write(_as_text(manifest))
                _sync(text)
                self._move_up(path)
                identity = _identity(part) + _identity(note)
                os.replace(part, path)
                os.replace(note, manifest_of(path))
        sync_folder(path.parent)
        self._own[path] = identity
        return manifest

    def _move_up(self, path: Path) -> None:
        """Every generation becomes one older; the newest is still at its place too."""
        if path.is_symlink() or not path.exists() or not (self._untouched(path) or sound(path)):
            return  # it would take the place of one that may be sound
        with suppress(CorruptCheckpointError):
            if read_manifest(generation(path, 1)) == read_manifest(path) and sound(generation(path, 1)):
                return  # somebody was killed after this
        for age in range(self._keep - 1, 0, -1):
            if generation(path, age - 1).exists():
                link(generation(path, age - 1), generation(path, age))
        sync_folder(path.parent)

    def _untouched(self, path: Path) -> bool:
        """Whether file and manifest are those that were written here last: then they need not be read again."""
        try:
            return self._own[path] == _identity(path) + _identity(manifest_of(path))
        except (KeyError, OSError):
            return False


def _words(error: OSError, folder: Path, size: Callable[[], int] | None) -> str:
    room = [] if size is None else [f"about {megabytes(size())} MB needed"]
    with suppress(OSError):
        room.append(f"{megabytes(shutil.disk_usage(folder).free)} MB free")
    return f"{error.strerror or error} ({', '.join(room)})" if room else str(error.strerror or error)


def link(source: Path, place: Path) -> None:
    """A file with its manifest at another place of the same file system, which neither is without at any moment."""
    for there, here in ((source, place), (manifest_of(source), manifest_of(place))):
        with suppress(FileNotFoundError):  # a manifest may be missing
            link_file(there, here)


def link_file(source: Path, place: Path) -> None:
    """Links a file, or copies it where there are no hard links; in place of what is there.

    Raises:
        OSError: if it cannot be done, such as FileNotFoundError.
    """
    beside = place.with_name(f"{place.name}.new")
    beside.unlink(missing_ok=True)
    try:
        os.link(source, beside, follow_symlinks=False)
    except OSError as error:
        if error.errno not in _NO_LINKS:
            raise
        try:
            with source.open("rb") as old, beside.open("xb") as new:
                shutil.copyfileobj(old, new, 1 << 20)
                _sync(new)
        except OSError:
            beside.unlink(missing_ok=True)
            raise
    os.replace(beside, place)
    beside.unlink(missing_ok=True)  # two links to one file are not renamed onto each other


def write_manifest(path: Path, manifest: Manifest) -> None:
    """Gives a file that is in its place a manifest."""
    with _unfinished(manifest_of(path)) as (note, text):
        text.write(_as_text(manifest))
        _sync(text)
        os.replace(note, manifest_of(path))
    sync_folder(path.parent)


def sweep(folder: Path) -> None:
    """Removes unfinished files of dead writers; what cannot be removed stays."""
    with suppress(OSError):
        for name in os.listdir(folder):
            if _LITTER.fullmatch(name):
                _remove_litter(folder / name)


def sync_folder(folder: Path) -> None:
    """Makes sure that what was renamed in a folder stays so after a power cut."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _remove_litter(path: Path) -> None:
    with suppress(OSError):
        descriptor = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)  # fails while its writer lives
            if os.fstat(descriptor).st_nlink == 1:
                path.unlink()
        finally:
            os.close(descriptor)


@contextmanager
def _unfinished(place: Path) -> Iterator[tuple[Path, IO[bytes]]]:
    """A new file beside a place, locked; removed at the end unless it was moved."""
    while True:
        path = place.with_name(f"{place.name}.part-{os.getpid()}-{os.urandom(4).hex()}")
        file = path.open("xb")
        with suppress(OSError):  # a file system without locks: nobody removes its litter
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if os.fstat(file.fileno()).st_nlink:
            break
        file.close()  # it was taken for litter before it was locked
    try:
        with file:
            yield path, file
    except BaseException:
        with suppress(OSError):
            path.unlink(missing_ok=True)
        raise


class _Hashing:
    """Writes through to a file, and hashes on the way: whoever writes must not go back."""

    def __init__(self, file: IO[bytes]) -> None:
        self.hash = hashlib.sha256()
        self.size = 0
        self.error: OSError | None = None
        self._file = file

    def write(self, data: Any) -> int:
        if self.error is not None:
            raise self.error
        try:
            written = self._file.write(data)
        except OSError as error:
            self.error = error
            raise
        self.hash.update(data)
        self.size += written
        return written

    def flush(self) -> None:
        """Nothing is read before all is written."""


def _sync(file: IO[bytes]) -> None:
    file.flush()
    os.fsync(file.fileno())


def _make_folder(folder: Path) -> None:
    if not folder.is_dir():
        _make_folder(folder.parent)
        folder.mkdir(exist_ok=True)
        sync_folder(folder.parent)


def _identity(path: Path) -> tuple[int, ...]:
    known = path.lstat()
    return known.st_dev, known.st_ino, known.st_size, known.st_mtime_ns
