"""What owners of jobs may have, in a bundle and in the file of a pool."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from lightning_core import Bundle
from lightning_core.bundle.problems import BundleError
from lightning_core.bundle.yaml_loader import load_yaml
from lightning_core.cli.main import main
from lightning_core.cli.up import differences
from lightning_core.parts.owners.owners_section import read_owners
from lightning_core.scheduler.settings import Settings

JOB = {"model": "tests.tiny.Line", "deadline": 60, "target": {"batches": 9}}


def test_owners_are_read_and_written() -> None:
    owners: dict[str, Any] = {
        "ann": {"devices": 2, "weight": 2, "max_devices": 3},
        "*": {"device_hours": 100, "per": "7d"},
    }
    read = Bundle.from_dict({"pool": {"devices": 4, "owners": owners}, "jobs": {"a": JOB}})
    assert read.settings.divider["owners"] == {
        "ann": {"devices": 2, "weight": 2.0, "max_devices": 3},
        "*": {"device_hours": 100.0, "per": 7 * 86400.0},
    }
    assert Bundle.from_dict(read.to_dict()) == read
    assert Settings(**read.settings.to_dict()).divider == read.settings.divider
    [note] = differences(Settings(devices=4), read.settings)
    assert note.startswith('owners {"ann": {"weight": 2')
    assert note.endswith("instead of none")


def test_every_problem_of_a_file_of_owners_has_its_line_and_column(tmp_path: Path) -> None:
    path = tmp_path / "owners.yaml"
    path.write_text(
        "ann: {devices: 2, wieght: 3}\n"
        "'a b': {}\n"
        "bob:\n  weight: 0\n"
        "carl: 7\n"
        "dora:\n  devices: 1.5\n  per: soon\n"
        "'*': {devices: true}\n"
    )
    content, problems = load_yaml(path)
    read_owners(content, problems, 4)
    where = [message.removeprefix(str(path)) for message in problems.messages]
    assert [message.split(": ")[:2] for message in where] == [
        [":1:19", "ann.wieght"], [":2:1", "a b"], [":3:1", "bob"], [":5:1", "carl"], [":7:3", "dora.devices"],
        [":8:3", "dora.per"], [":9:7", "*.devices"],
    ]  # fmt: skip
    assert "weight must be positive and finite, got 0" in where[2]
    (tmp_path / "pool.yaml").write_text("pool:\n  owners: {'a b': {}}\n")
    assert main(["up", "--config", str(tmp_path / "pool.yaml"), "--folder", str(tmp_path / "pool")]) != 0
    assert not (tmp_path / "pool").exists()


@pytest.mark.parametrize(
    ("owners", "words"),
    [
        ({}, "pool.owners: expected a mapping of owners"),
        ({"ann": {"devices": 3}, "bob": {"devices": 2}}, "must be at most the pool's 4 devices, got 5"),
        ({"ann": {"max_devices": 0}}, "pool.owners.ann.max_devices: "),
        ({"*": {"devices": 1}}, "owner '*' must have no quota"),
    ],
)
def test_owners_that_do_not_fit_the_pool_are_refused(owners: dict[str, Any], words: str) -> None:
    with pytest.raises(BundleError) as error:
        Bundle.from_dict({"pool": {"devices": 4, "owners": owners}, "jobs": {"a": JOB}})
    assert words in str(error.value)
