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


# Ray reads the token once in the life of a process: each path has a fork of one that has imported Ray.
TOKEN = """
import os, sys, ray
from lightning_core.cluster import ray_cluster
for path in sys.argv[1:]:
    if os.fork() == 0:
        os.environ["RAY_AUTH_TOKEN_PATH"] = path
        ray_cluster._ensure_token()
        print(len(os.environ.get("RAY_AUTH_TOKEN", "")), flush=True)
        os._exit(0)
    assert os.wait()[1] == 0
"""


def test_a_token_that_cannot_be_read_is_replaced_for_this_process(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "empty").write_text("")
    (tmp_path / "of another Ray").write_text("ab" * 32)
    environment = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
    paths = [str(tmp_path / name) for name in ("gone", "empty", "folder", "of another Ray")]
    done = subprocess.run(
        [sys.executable, "-c", TOKEN, *paths], capture_output=True, text=True, timeout=120, cwd="/",
        env=environment | {"RAY_AUTH_MODE": "token"},
    )  # fmt: skip
    assert (done.returncode, done.stdout.split()) == (0, ["64", "64", "64", "0"]), done.stderr
