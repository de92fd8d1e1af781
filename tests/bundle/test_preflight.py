"""Checks of Python objects, checkpoints and this machine before anything starts."""

from __future__ import annotations

import io
import json
import os
import re
import struct
import subprocess
import sys
import threading
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from lightning_core.bundle import preflight
from lightning_core.bundle.job_spec import JobSpec
from lightning_core.bundle.problems import BundleError, Position, Problems
from lightning_core.callbacks.checkpointing.checkpoint_io import CheckpointError, SafeCheckpointIO
from lightning_core.cluster.bundle import Bundle
from lightning_core.core.jobs import Job
from lightning_core.core.targets import BatchTarget
from lightning_core.storage import manifests

# ------------------------------------------------------------------------------------------ Python objects


def unsendable() -> Iterator[tuple[Any, str]]:
    yield threading.Lock(), "<class '_thread.lock'>"
    yield (lambda: 1), "<class 'function'>"
    yield io.StringIO(), "<class '_io.StringIO'>"
    yield torch.zeros(1), "<class 'torch.Tensor'>"
    yield Path("x"), "<class 'pathlib.PosixPath'>"
    yield {1, 2}, "<class 'set'>"
    yield torch.nn.Linear, "<class 'type'>"


@pytest.mark.parametrize(("value", "kind"), unsendable())
def test_unpicklable_objects_are_named_by_their_path(value: Any, kind: str) -> None:
    config = {"model": {"class_path": "tests.tiny.Line", "init_args": {"parts": [1, {"lock": value}]}}}
    words = (
        f"model.init_args.parts[1].lock: {kind} cannot be sent to the worker; describe it by class_path and init_args"
    )
    with pytest.raises(BundleError) as caught:
        Bundle.from_dict({"jobs": {"a": {**config, "deadline": "9s", "target": {"batches": 1}}}})
    assert caught.value.problems == [f"bundle: jobs.a.{words}"]
    with pytest.raises(BundleError) as caught:
        JobSpec(Job("a", 9.0, BatchTarget(1)), config)
    assert caught.value.problems == [f"bundle: jobs.a.{words}"]


@pytest.mark.parametrize("content", [[], None, "jobs", 3])
def test_a_bundle_is_a_mapping(content: Any) -> None:
    with pytest.raises(BundleError, match="bundle: expected a mapping with 'jobs', got"):
        Bundle.from_dict(content)


def test_duplicate_job_names_are_refused() -> None:
    spec = JobSpec(Job("a", 9.0, BatchTarget(1)), {"model": {"class_path": "tests.tiny.Line"}})
    with pytest.raises(BundleError, match="jobs: 'a' is there twice"):
        Bundle((spec, spec))
    with pytest.raises(BundleError, match="at least one job is needed"):
        Bundle(())


# ------------------------------------------------------------------------------------------ checkpoints


class Evil:
    """Runs a command when it is unpickled."""

    def __reduce__(self) -> Any:
        return os.system, ("touch pwned",)


def problems_of(path: Path) -> list[str]:
    content = {"jobs": {"a": {"model": "tests.tiny.Line", "deadline": "9s", "target": {"batches": 1}}}}
    content["jobs"]["a"]["ckpt_path"] = str(path)
    try:
        Bundle.from_dict(content).check()
    except BundleError as error:
        return error.problems
    return []


def saved(path: Path, **more: Any) -> bytes:
    torch.save({"state_dict": {"layer.weight": torch.arange(20000.0)}, "global_step": 1, **more}, path)
    return path.read_bytes()


def test_a_valid_checkpoint_is_accepted(tmp_path: Path) -> None:
    import lightning.pytorch as pl

    from tests.tiny import QUIET, Line, Points

    trainer = pl.Trainer(max_steps=2, **QUIET)
    trainer.fit(Line(), datamodule=Points())
    trainer.save_checkpoint(tmp_path / "last.ckpt")
    assert problems_of(tmp_path / "last.ckpt") == []


def test_a_truncated_checkpoint_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "last.ckpt"
    path.write_bytes(saved(path)[:40000])
    [problem] = problems_of(path)
    assert problem == f"bundle: jobs.a.ckpt_path: checkpoint {path}: truncated (40,000 bytes): its end is missing"


def test_a_flipped_bit_in_a_checkpoint_is_detected(tmp_path: Path) -> None:
    path = tmp_path / "last.ckpt"
    content = bytearray(saved(path))
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    [problem] = problems_of(path)
    assert re.search(r"last.ckpt: damaged: last/data/0 differs from the saved file", problem)


def test_a_checkpoint_with_code_is_refused_unread(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    saved(tmp_path / "last.ckpt", evil=Evil())
    [problem] = problems_of(tmp_path / "last.ckpt")
    assert re.search(r"refused: checkpoint .* contains code or unknown types: (posix|os).system", problem)
    assert not (tmp_path / "pwned").exists()


def test_a_checkpoint_of_another_format_is_refused(tmp_path: Path) -> None:
    torch.save({"weights": torch.zeros(1)}, tmp_path / "last.ckpt")
    [problem] = problems_of(tmp_path / "last.ckpt")
    assert problem.endswith("last.ckpt is not a checkpoint of Lightning: it has no 'state_dict'")


def rewritten(path: Path, change: Callable[[str, bytes], bytes], compression: int = zipfile.ZIP_STORED) -> None:
    """Write the entries of a checkpoint again, changed."""
    saved(path)
    with zipfile.ZipFile(path) as archive:
        entries = {name: archive.read(name) for name in archive.namelist()}
    with zipfile.ZipFile(path, "w", compression) as archive:
        for name, content in entries.items():
            archive.writestr(name, change(name, content))


def bytearray_of(size: int) -> bytes:
    """A pickle of ``{"state_dict": bytearray(size)}``, which torch loads as plain data."""
    key, number = b"state_dict", size.to_bytes(8, "little")
    made = b"c__builtin__\nbytearray\n" + b"\x8a\x08" + number + b"\x85R"
    return b"\x80\x02}X" + struct.pack("<I", len(key)) + key + made + b"s."


def peak_memory(path: Path) -> tuple[int, list[str]]:
    """Return by how many MiB the checks of a checkpoint raise the memory of a process, and what they say."""
    code = (
        "import json, resource, sys, torch; from pathlib import Path\n"
        "from lightning_core.bundle.preflight import *; from lightning_core.bundle.problems import *\n"
        "peak = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024\n"
        "before, problems = peak(), Problems(Position('x'))\n"
        "check_checkpoint_file(Path(sys.argv[1]), problems)\n"
        "problems.messages or check_checkpoint_content(Path(sys.argv[1]), problems)\n"
        "print(json.dumps([peak() - before, problems.messages]))"
    )
    done = subprocess.run([sys.executable, "-c", code, str(path)], capture_output=True, text=True, check=True)
    taken, problems = json.loads(done.stdout)
    return taken, problems


@pytest.mark.parametrize("entry", ["data.pkl", "data/0"])
def test_a_compressed_checkpoint_is_refused_unread(tmp_path: Path, entry: str) -> None:
    path = tmp_path / "last.ckpt"
    rewritten(path, lambda name, content: content + bytes(2**20 * name.endswith(entry)), zipfile.ZIP_DEFLATED)
    assert path.stat().st_size < 2**17
    [problem] = problems_of(path)
    assert problem.endswith("data.pkl is compressed, which torch never does; write it with torch.save")


def test_a_checkpoint_that_asks_for_memory_is_refused_unread(tmp_path: Path) -> None:
    path = tmp_path / "last.ckpt"
    rewritten(path, lambda name, content: bytearray_of(2**32) if name.endswith("data.pkl") else content)
    words = "has a bytearray, which may take any amount of memory; save it as a tensor"
    [problem] = problems_of(path)
    assert problem.endswith(words)
    with pytest.raises(CheckpointError, match=words):
        SafeCheckpointIO().load_checkpoint(path)


def test_a_checkpoint_with_too_many_entries_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(manifests, "MAX_LIST_BYTES", 200)
    saved(tmp_path / "last.ckpt")
    [problem] = problems_of(tmp_path / "last.ckpt")
    assert re.search(r"last.ckpt: its list of entries has [\d,]+ bytes, more than 200$", problem)


def test_a_file_that_says_bytearray_in_a_text_is_no_such_file(tmp_path: Path) -> None:
    saved(tmp_path / "last.ckpt", note="a bytearray", odd="c__builtin__ bytearray")
    assert problems_of(tmp_path / "last.ckpt") == []


@pytest.mark.nightly
@pytest.mark.parametrize("kind", ["deflated", "bytearray"])
def test_a_bomb_takes_no_memory(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "last.ckpt"
    if kind == "deflated":
        rewritten(path, lambda name, content: content + bytes(2**30 * name.endswith("pkl")), zipfile.ZIP_DEFLATED)
    else:
        rewritten(path, lambda name, content: bytearray_of(2**30) if name.endswith("pkl") else content)
    taken, problems = peak_memory(path)
    assert problems
    assert taken < 200


def test_a_folder_as_a_checkpoint_is_refused(tmp_path: Path) -> None:
    [problem] = problems_of(tmp_path)
    assert "is a folder of shards" in problem


# ------------------------------------------------------------------------------------------ this machine


DIVIDED = ("GPU 0: A100 (UUID: GPU-1)\n  MIG 3g.20gb Device 0: (UUID: MIG-1)\n  MIG 3g.20gb Device 1: (UUID: MIG-2)\n"
           "GPU 1: A100 (UUID: GPU-2)\n")  # fmt: skip


@pytest.mark.parametrize(
    ("listed", "printed", "visible", "count"),
    [
        (2, "", None, 2),
        (2, "", "0", 1),
        (2, "", "", 0),
        (2, "", "-1", 0),
        (None, "GPU 0: H200 (UUID: GPU-1)\nGPU 1: H200 (UUID: GPU-2)\n", None, 2),
        (None, "No devices were found\n", None, 0),
        # Two instances of one card are two devices, beside a whole one.
        (1, "", "MIG-1,MIG-2", 2),
        (None, DIVIDED, "MIG-1, MIG-2,0", 3),
        (None, DIVIDED, "MIG-1,MIG-1", 1),
        (None, DIVIDED, None, 2),
        (0, None, "MIG-1,MIG-2", 0),
        (None, None, None, 0),
    ],
)
def test_gpus_are_counted_without_torch(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    listed: int | None,
    printed: str | None,
    visible: str | None,
    count: int,
) -> None:
    def listdir(path: str) -> list[str]:
        if listed is None:
            raise FileNotFoundError(path)
        return [""] * listed

    monkeypatch.setattr("os.listdir", listdir)
    monkeypatch.setenv("PATH", str(tmp_path))
    if printed is not None:
        command = tmp_path / "nvidia-smi"
        command.write_text(f"#!/bin/sh\n[ $1 = -L ] && printf '{printed}'\n")
        command.chmod(0o755)
    if visible is None:
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    else:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert preflight.gpus_here() == count


def test_an_unwritable_run_folder_is_refused(tmp_path: Path) -> None:
    preflight.check_folder(tmp_path / "new" / "run")
    assert list((tmp_path / "new" / "run").iterdir()) == []
    (tmp_path / "file").write_text("")
    with pytest.raises(BundleError, match="file/run: cannot be written to: Not a directory"):
        preflight.check_folder(tmp_path / "file" / "run")


def test_a_full_disk_is_reported_before_the_run(tmp_path: Path) -> None:
    code = (
        "import resource, signal, sys; from pathlib import Path\n"
        "from lightning_core.bundle.preflight import check_folder\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN); resource.setrlimit(resource.RLIMIT_FSIZE, (100, 100))\n"
        "check_folder(Path(sys.argv[1]))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True, timeout=300, check=False
    )
    assert f"BundleError: {tmp_path}: cannot be written to: File too large" in done.stderr


def test_little_disk_space_is_warned_about(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    free = 5 * 2**30
    monkeypatch.setattr("shutil.disk_usage", lambda path: type("Usage", (), {"free": free}))
    monkeypatch.setattr(preflight, "_in_memory", lambda folder: False)
    with (tmp_path / "last.ckpt").open("wb") as file:
        file.truncate(2 * 2**30)  # a hole: it takes no room
    assert preflight.folder_warnings(tmp_path) == []
    assert preflight.folder_warnings(tmp_path, [tmp_path / "last.ckpt", tmp_path / "none"]) == [
        f"{tmp_path}: 5.0 GiB free; the jobs' checkpoints may need 6.0"
    ]
    free = 2**29
    assert preflight.folder_warnings(tmp_path) == [f"{tmp_path}: 0.5 GiB free; the jobs' checkpoints may need 1.0"]


@pytest.mark.skipif("/dev/shm tmpfs" not in Path("/proc/self/mounts").read_text(), reason="needs a tmpfs")
def test_a_folder_in_memory_is_warned_about() -> None:
    assert any("is on a file system in memory" in warning for warning in preflight.folder_warnings(Path("/dev/shm")))
    assert not preflight._in_memory(Path("/proc"))


def test_each_problem_is_one_printable_line() -> None:
    found = Problems(Position("b\x1b.yaml"))
    found.at("a\nb").add("x\ty\u202e")
    assert found.messages == ["b\\x1b.yaml: a b: x y\\u202e"]
