"""Checkpoint files and their manifests: whatever they hold, a file is loaded only as it was written."""

from __future__ import annotations

import hashlib
import io
import json
import zipfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import IO, Any

import pytest
from hypothesis import strategies as st

from lightning_core.storage.generations import Generations, generation_path, newest_valid
from lightning_core.storage.manifests import (
    CorruptCheckpointError,
    Manifest,
    check_archive,
    manifest_of,
    open_verified,
    read_manifest,
)
from tests.fuzz.fuzzing import Target, fuzz, fuzz_for_long
from tests.fuzz.test_bundles import NUMBERS, edited, edits

CONTENTS = (b"the older one" * 20, b"the newer one" * 20)

numbers = st.one_of(st.sampled_from(NUMBERS), st.integers(), st.floats())
leaves = st.one_of(st.none(), numbers, st.text(max_size=8), st.sampled_from(("0" * 64, "F" * 64, "٣" * 64, "a" * 63)))
values = st.recursive(leaves, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner))
changes = st.dictionaries(st.sampled_from(("format", *Manifest._fields, "other")), values, min_size=1, max_size=4)
# A manifest as text: other values, other bytes, or something else altogether.
noise = st.one_of(
    st.binary(max_size=60), st.sampled_from((b"[" * 4096, b"{" * 4000, b"1" * 4096, b"null", b"NaN", b""))
)
texts: st.SearchStrategy[Callable[[bytes], bytes]] = st.one_of(
    changes.map(lambda new: lambda old: json.dumps(json.loads(old) | new).encode()),
    edits.map(lambda done: lambda old: edited(old, done)),
    noise.map(lambda new: lambda old: new),
)
# Which of the four files are changed, and how.
damages = st.lists(st.tuples(st.integers(0, 1), st.booleans(), texts), min_size=1, max_size=3)


def _write(content: bytes, file: IO[bytes]) -> None:
    file.write(content)


@pytest.fixture
def generations(tmp_path: Path) -> Target:
    path = tmp_path / "last.ckpt"
    saver = Generations()
    for content in CONTENTS:
        saver.save(path, partial(_write, content), step=3, batches=3, value=0.5)
    files = [path for path in tmp_path.iterdir() if path.is_file()]
    whole = {file: file.read_bytes() for file in files}
    assert len(files) == 4

    def damage_and_read(damage: list[tuple[int, bool, Callable[[bytes], bytes]]]) -> None:
        for file, content in whole.items():
            file.write_bytes(content)
        touched = set()
        for age, of_manifest, change in damage:
            file = generation_path(path, age)
            file = manifest_of(file) if of_manifest else file
            content = file.read_bytes()
            try:
                file.write_bytes(change(content))
            except (ValueError, TypeError, RecursionError):  # it is no JSON object any more
                continue
            touched.add(age)
        for age in (0, 1):
            file = generation_path(path, age)
            try:
                manifest = read_manifest(file)
                assert manifest is not None
                assert isinstance(manifest.size, int)
                with open_verified(file) as (opened, verified):
                    content = opened.read()
                    assert verified == manifest
                    assert hashlib.sha256(content).hexdigest() == manifest.sha256
                    assert content == whole[file]
            except CorruptCheckpointError:
                assert age in touched
        newest = newest_valid(path)
        if newest is not None:
            assert newest[0].read_bytes() == whole[newest[0]]
        assert newest is not None or touched == {0, 1}

    return damage_and_read


def archive() -> bytes:
    """A file as torch writes one: entries that are not compressed."""
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w", zipfile.ZIP_STORED) as entries:
        for name, content in (("a/data.pkl", b"\x80\x02}."), ("a/data/0", bytes(400)), ("a/version", b"3\n")):
            entries.writestr(name, content)
    return made.getvalue()


ARCHIVE = archive()


def check_damaged_archive(changes: list[tuple[str, int, int, bytes]]) -> None:
    """Either it is refused, or all its entries are there and stored."""
    content = edited(ARCHIVE, changes)
    file = io.BytesIO(content)
    try:
        check_archive(file, content=True)
    except CorruptCheckpointError:
        return
    with zipfile.ZipFile(io.BytesIO(content)) as entries:
        assert sum(entry.file_size for entry in entries.infolist()) <= len(content)
        assert all(entry.compress_type == zipfile.ZIP_STORED for entry in entries.infolist())


# What earlier runs have found.
FOUND_DAMAGES: tuple[Any, ...] = ()
FOUND_ARCHIVES = ([("flip", 531, 0, b"")],)  # the mark of an encrypted entry


def test_no_damaged_checkpoint_is_loaded(generations: Target) -> None:
    fuzz(generations, damages, 120, FOUND_DAMAGES)


def test_no_damaged_archive_is_read() -> None:
    fuzz(check_damaged_archive, edits, 200, FOUND_ARCHIVES)


@pytest.mark.nightly
def test_no_damaged_checkpoint_is_loaded_for_long(generations: Target) -> None:
    fuzz_for_long(generations, damages)


@pytest.mark.nightly
def test_no_damaged_archive_is_read_for_long() -> None:
    fuzz_for_long(check_damaged_archive, edits)
