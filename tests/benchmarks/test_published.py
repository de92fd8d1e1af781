"""The archive of published curves: what its page lists, and the recordings that results are reported on."""

from __future__ import annotations

import csv
import json
import re
import tarfile
from collections import Counter
from pathlib import Path

import pytest

from benchmarks.curves.published import ARCHIVE, PAGE, pack, unpack
from benchmarks.curves.replay import SPLIT, reporting
from lightning_core.simulation.recorded_curves import Curve, load_curves


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return unpack(tmp_path_factory.mktemp("curves"))


@pytest.fixture(scope="module")
def curves(folder: Path) -> list[Curve]:
    return load_curves(folder)


def test_the_archive_has_what_its_page_lists_and_nothing_else(folder: Path) -> None:
    rows = re.findall(r"^\| `(\w+__)` \| github.*\| (\d+) \|$", PAGE.read_text(), re.M)
    listed = {prefix: int(runs) for prefix, runs in rows}
    files = {path.name for path in folder.iterdir()} - {"index.csv", PAGE.name}
    assert Counter(f"{name.partition('__')[0]}__" for name in files) == listed
    assert sum(listed.values()) == len(files) == 229
    with (folder / "index.csv").open() as lines:
        assert {row["file"] for row in csv.DictReader(lines)} == files


def test_the_licences_travel_with_the_curves(folder: Path) -> None:
    assert (folder / PAGE.name).read_text() == PAGE.read_text()
    for words in (
        "Permission is hereby granted",
        "Licensed under the Apache License, Version 2.0",
        "copyright the authors",
    ):
        assert words in PAGE.read_text()


def test_every_row_of_the_index_names_the_repository_and_the_file_it_comes_from(folder: Path) -> None:
    repositories = set(re.findall(r"github\.com/([\w.-]+/[\w.-]+)", PAGE.read_text()))
    with (folder / "index.csv").open() as lines:
        for row in csv.DictReader(lines):
            assert row["source"] in repositories
            assert row["path"]


def test_every_recording_loads(curves: list[Curve]) -> None:
    assert len(curves) == len({curve.name for curve in curves}) == 229
    assert all(len(curve.loss) >= 30 for curve in curves)


def test_the_split_names_families_of_the_archive_and_leaves_88_recordings_to_report_on(
    folder: Path, curves: list[Curve]
) -> None:
    assert set(json.loads(SPLIT.read_text())["tuned_on"]) < {curve.family for curve in curves}
    pool = reporting(folder)
    assert len(pool) == 88
    assert len({one.curve.family for one in pool}) == 9
    assert Counter(one.curve.domain for one in pool).most_common(1) == [("cv", 30)]


def test_nothing_is_written_over(tmp_path: Path) -> None:
    (tmp_path / "mine.csv").write_text("step,loss\n")
    with pytest.raises(FileExistsError, match="is not empty, and nothing is overwritten"):
        unpack(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["mine.csv"]


def test_a_member_outside_the_folder_is_not_written(tmp_path: Path) -> None:
    archive = tmp_path / "bad.tar.xz"
    with tarfile.open(archive, "w:xz") as packed:
        packed.addfile(tarfile.TarInfo("../outside.csv"))
    with pytest.raises(tarfile.OutsideDestinationError):
        unpack(tmp_path / "inside", archive)
    assert not (tmp_path / "outside.csv").exists()


def test_the_same_files_give_the_same_archive(tmp_path: Path) -> None:
    made = []
    for name in ("one", "other"):
        (tmp_path / name).mkdir()
        for file, rows in (("index.csv", "file\na__1.csv\n"), ("a__1.csv", "step,loss\n1,2\n2,1\n")):
            (tmp_path / name / file).write_text(rows)
        pack(tmp_path / name, tmp_path / f"{name}.tar.xz")
        made.append((tmp_path / f"{name}.tar.xz").read_bytes())
    assert made[0] == made[1]
    assert [path.name for path in sorted(unpack(tmp_path / "new", tmp_path / "one.tar.xz").iterdir())] == [
        PAGE.name, "a__1.csv", "index.csv",
    ]  # fmt: skip
    assert ARCHIVE.stat().st_size < 2_000_000
