"""Bundle files: any text is a bundle, or refused with problems that name file, line and column; nothing is imported."""

from __future__ import annotations

import re
import sys
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import strategies as st

from lightning_core.bundle.bundle_content import BUNDLE_KEYS
from lightning_core.bundle.bundle_file import BundleSpec
from lightning_core.bundle.job_section import JOB_KEYS
from lightning_core.bundle.pool_section import POOL_KEYS
from lightning_core.bundle.problems import MAX_PROBLEM_LENGTH, BundleError
from lightning_core.core.targets import target_keys
from tests.conftest import ROOT
from tests.fuzz.fuzzing import Target, fuzz, fuzz_for_long

SHIPPED = [path.read_bytes() for path in sorted((ROOT / "examples").rglob("*.yaml"))]
TRAP = "lc_fuzz_trap"
NOW = datetime(2026, 11, 23, 12)

KEYS = (*BUNDLE_KEYS, *JOB_KEYS, *target_keys(), *POOL_KEYS, "name", "order", "explore",
        "command", "webhook", "trace", "interval", "on_demand", "class_path", "init_args", "max_epochs", "fit", "<<",
        "callbacks", "logger", "at_most", "at_least", "best")  # fmt: skip
NUMBERS = (0, -1, 1, 10**26, -(10**26), 2**53, 2**63, 0.0, -0.0, 1e308, 5e-324, 1e-9, float("nan"), float("inf"),
           float("-inf"), True, False)  # fmt: skip
TEXTS = (
    "",
    "a",
    "x" * 5000,
    "12:30",
    "18:00",
    "24:60",
    "2026-02-30T18:00",
    "9999-12-31T23:59",
    "0001-01-01T00:00",
    "1h30m",
    "99999999999999h",
    "-5m",
    "1e999s",
    "nan",
    "inf",
    "1e308",
    "loss<=nan",
    "val_acc>=0.9 for 0 evaluations",
    "loss<=1e-400",
    "10 batches",
    "99999999999999999999999 batches",
    "triage",
    "lara:order=edf",
    "laira:explore=1e9",
    "log_time",
    "stop",
    "hold",
    "gpu",
    "cpu",
    f"{TRAP}.Model",
    "os.system",
    "/dev/zero",
    "/dev/null",
    "/etc/passwd",
    ".",
    "..",
    "a\0b",
    "\x1b[31m",
    "\u202e",
    "\u2028",
    "\ud7ff",
    "../" * 500,
    "cnn.yaml",
    "bundle.yaml",
    "~",
    "=",
    "http://[::1",
    "file:///x",
)
# With these as jobs, all below is reached: a job without deadline and target is refused at once.
GOOD = {"model": f"{TRAP}.Model", "deadline": "1h", "target": {"loss": 0.5}}

leaves = st.one_of(
    st.none(), st.sampled_from(NUMBERS), st.sampled_from(TEXTS), st.integers(), st.floats(), st.text(max_size=20)
)
keys = st.one_of(st.sampled_from(KEYS), st.sampled_from(KEYS), st.text(max_size=8), st.integers(), st.none())
values = st.recursive(
    leaves, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(keys, inner, max_size=4), max_leaves=12
)
jobs = st.builds(lambda more: GOOD | more, st.dictionaries(st.sampled_from(JOB_KEYS), values, max_size=4))
bundles = st.builds(
    lambda top, jobs: {**top, "jobs": jobs},
    st.dictionaries(st.sampled_from(BUNDLE_KEYS), values, max_size=3),
    st.dictionaries(st.one_of(st.sampled_from(("a", "b-2.c")), st.text(max_size=6)), jobs, max_size=3),
)
structures = st.one_of(bundles, jobs, st.dictionaries(keys, values, max_size=5), values)

TOKENS = (
    b":",
    b"- ",
    b"\n",
    b"  ",
    b"[",
    b"]",
    b"{",
    b"}",
    b"&a ",
    b"*a",
    b"<<: *a",
    b"!!python/object:os.system ",
    b"'",
    b'"',
    b"|",
    b">",
    b"#",
    b"%",
    b"\t",
    b"\r",
    b"---",
    b"...",
    b"\0",
    b"\xff",
    b"\xef\xbb\xbf",
    b"9" * 4400,
    b"1e999",
    b".nan",
    b"0x_",
    b"12:30",
    b"? ",
    b"=",
    b"\xe2\x80\xa8",
    b"[" * 60,
)
edits = st.lists(
    st.tuples(st.sampled_from(("cut", "insert", "flip", "copy")), st.integers(0, 2000), st.integers(0, 60),
              st.one_of(st.sampled_from(TOKENS), st.binary(max_size=4))),
    min_size=1, max_size=6,
)  # fmt: skip


def edited(content: bytes, changes: list[tuple[str, int, int, bytes]]) -> bytes:
    """Return a content with some of its bytes cut, copied or changed, and some put in."""
    made = bytearray(content)
    for kind, at, length, token in changes:
        at %= len(made) + 1
        if kind == "cut":
            del made[at : at + length]
        elif kind == "insert":
            made[at:at] = token
        elif kind == "copy":
            made[at:at] = made[at // 2 : at // 2 + length]
        elif at < len(made):
            made[at] ^= 1 << length % 8
    return bytes(made)


def written(content: Any) -> bytes:
    text: str = yaml.safe_dump(content, sort_keys=False, allow_unicode=True)
    return text.encode("utf-8", "surrogatepass")


texts = st.one_of(structures.map(written), st.builds(edited, st.sampled_from(SHIPPED), edits))
# What earlier runs have found.
FOUND: tuple[bytes, ...] = ()


@pytest.fixture
def target(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Target:
    """Read a bundle in a folder in which importing, or running what the bundle names, would be seen."""
    (tmp_path / f"{TRAP}.py").write_text("raise SystemExit('imported')")
    (tmp_path / "cnn.yaml").write_text(f"model: {TRAP}.Model\n")
    path, before = tmp_path / "bundle.yaml", {f"{TRAP}.py", "cnn.yaml", "bundle.yaml"}
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))

    def read(content: bytes) -> None:
        path.write_bytes(content)
        try:
            read_bundle = BundleSpec.from_file(path)
            BundleSpec.from_dict(read_bundle.to_dict(), tmp_path)
            read_bundle.submit(NOW)
        except BundleError as error:
            problems = error.problems or [""]
        else:
            problems = []
        for problem in problems:
            check(problem, content)
        assert TRAP not in sys.modules
        assert {file.name for file in tmp_path.iterdir()} == before

    def check(problem: str, content: bytes) -> None:
        assert problem
        assert problem.isprintable(), problem
        assert len(problem) <= MAX_PROBLEM_LENGTH + 4, problem
        if place := re.match(r".*?/(?:bundle|cnn)\.yaml:(\d+):(\d+): ", problem):
            lines = len(content.decode().splitlines())  # as YAML counts them, at U+2028 too
            assert int(place[1]) <= lines + 1, problem

    return read


def test_any_text_is_a_bundle_or_is_refused(target: Target) -> None:
    fuzz(target, texts, 200, FOUND)


@pytest.mark.nightly
def test_any_text_is_a_bundle_or_is_refused_for_long(target: Target) -> None:
    fuzz_for_long(target, texts)
