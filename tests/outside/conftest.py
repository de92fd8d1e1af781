"""The outside package on the path, with the metadata that an installer would write."""

from __future__ import annotations

import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

from lightning_core.core import parts
from lightning_core.core.control import asks
from lightning_core.policies import POLICIES

HERE = Path(__file__).parent


def install(folder: Path, version: str = "") -> Path:
    """Write what an installer would into a folder; return it.

    Args:
        folder: New folder.
        version: Version of the package; by default its own.
    """
    project = tomllib.loads((HERE / "pyproject.toml").read_text())["project"]
    version = version or project["version"]
    metadata = folder / f"quiet_nights-{version}.dist-info"
    metadata.mkdir(parents=True)
    (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: {version}\n")
    (metadata / "top_level.txt").write_text("quiet_nights\n")
    points = project["entry-points"][parts.GROUP]
    lines = [f"{name} = {value}" for name, value in points.items()]
    (metadata / "entry_points.txt").write_text("\n".join([f"[{parts.GROUP}]", *lines, ""]))
    (folder / "quiet_nights").symlink_to(HERE / "quiet_nights")
    return folder


def brings(controller: str) -> bool:
    """Return whether the package has a controller of this name or path."""
    quiet = parts._registered.get("quiet")
    return controller.startswith("quiet_nights.") or (quiet is not None and controller in quiet.part.controllers)


def forget() -> None:
    """Let this process look anew for what is installed."""
    for name in [one for one in sys.modules if one.partition(".")[0] == "quiet_nights"]:
        del sys.modules[name]
    for by in [one for one in asks._DECLARED if one not in asks.RIGHTS and brings(one)]:
        del asks._DECLARED[by]
    parts.unregister("quiet")
    POLICIES._given.clear()
    parts._load_installed.cache_clear()
    parts._distributions.cache_clear()


@pytest.fixture
def quiet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The package, installed."""
    folder = install(tmp_path / "site")
    monkeypatch.syspath_prepend(str(folder))
    forget()
    yield folder
    monkeypatch.undo()
    forget()
