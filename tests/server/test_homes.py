"""Where an account without a home has its pool, and the token of a Ray that is started where none can be read."""

from __future__ import annotations

import os
import pwd
import subprocess
import sys
from pathlib import Path
from typing import NoReturn

import pytest

from lightning_core.server.discovery import home

pytestmark = pytest.mark.promise("F39")


def test_an_account_without_a_home_has_a_pool_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown(number: int) -> NoReturn:
        raise KeyError(f"getpwuid(): uid not found: {number}")

    monkeypatch.delenv("LIGHTNING_CORE_HOME", raising=False)
    monkeypatch.delenv("HOME")
    monkeypatch.setattr(pwd, "getpwuid", unknown)
    assert home() == Path(f"/tmp/lightning_core-{os.getuid()}/pool")


def test_an_empty_variable_names_no_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("LIGHTNING_CORE_HOME", "")
    assert home() == tmp_path / ".lightning_core/pool"


TOKEN = """
import os, ray
from lightning_core.cluster import ray_cluster
ray_cluster._ensure_token()
print(len(os.environ.get("RAY_AUTH_TOKEN", "")))
"""


@pytest.mark.parametrize("file", ["gone", "empty", "folder", "of another Ray"])
def test_a_token_that_cannot_be_read_is_replaced_for_this_process(file: str, tmp_path: Path) -> None:
    path = tmp_path / "token"
    if file == "folder":
        path.mkdir()
    elif file != "gone":
        path.write_text("" if file == "empty" else "ab" * 32)
    environment = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
    done = subprocess.run(
        [sys.executable, "-c", TOKEN], capture_output=True, text=True, timeout=120, cwd="/",
        env=environment | {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": str(path)},
    )  # fmt: skip
    own = 0 if file == "of another Ray" else 64
    assert (done.returncode, done.stdout) == (0, f"{own}\n"), done.stderr
