"""Recorded curves: any bytes are a recording, or refused with the name of the file; what is read can be played."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
from hypothesis import strategies as st

from lightning_core.bundle.problems import BundleError
from lightning_core.core.targets import is_loss
from lightning_core.simulation.bundle_curves import read_bundle
from lightning_core.simulation.recorded_curves import load_curves
from lightning_core.simulation.simulation import Simulation
from tests.fuzz.fuzzing import Target, fuzz, fuzz_for_long

INDEX = "file,domain,task,sec_per_step,jumps_back,rows\na.csv,cv,one,0.01,0,40\nb.csv,nlp,two,,,40\n"
RECORDING = "step,loss\n" + "".join(f"{10 * k},{3.0 * k**-0.5}\n" for k in range(1, 41))
BUNDLE = """\
jobs:
  named: {model: {class_path: a.B}, deadline: 60s, target: {loss: 0.6}, curve: a.csv}
  grows: {model: {class_path: a.B}, deadline: 60s, target: "acc>=0.5", curve: b.csv, throughput: 20}
  drawn: {model: {class_path: a.B}, deadline: 60s, target: {loss: -1.0}}
  known: {model: {class_path: a.B}, deadline: 60s, target: {batches: 100}}
"""
FILES = {"index.csv": INDEX, "a.csv": RECORDING, "b.csv": RECORDING}
TOKENS = (b"1e308", b"-1e308", b"1e299", b"1e300", b"5e-324", b"1e-322", b"0", b"-0", b"-1", b"nan", b"inf", b"1e999",
          b"9" * 400, b"0x1", b"1_000", b",", b",,", b"\n", b"\r", b"\0", b"\xff", b"\xef\xbb\xbf", b'"', b"../a.csv",
          b"/dev/zero", b"a.csv", b"index.csv", b"\xe2\x80\xa8", b"step,loss", b"x" * 3000)  # fmt: skip


class Edit(NamedTuple):
    """A change of one file: some of its bytes, or one value of it, are replaced."""

    file: str
    place: int
    length: int
    new: bytes
    of_value: bool
    """Whether a whole value is replaced."""


edits = st.builds(
    Edit, st.sampled_from(tuple(FILES)), st.integers(0, 10**4), st.integers(0, 30),
    st.one_of(st.sampled_from(TOKENS), st.sampled_from(TOKENS), st.binary(max_size=6),
              st.floats().map(lambda value: repr(value).encode())),
    st.booleans(),
)  # fmt: skip
damages = st.lists(edits, min_size=1, max_size=6)

FOUND = [
    [Edit("index.csv", 0, 0, b"\x80", of_value=False)],  # in another encoding: refused without its name
    [Edit("index.csv", 1, 0, b"/dev/zero", of_value=True)],  # outside the folder: read for ever
    [Edit("a.csv", 0, 10**4, b"step,loss\n1,2,3,4\n5,6,7,8\n", of_value=False)],  # four columns: taken for two rows
    [Edit("index.csv", 1, 0, b"x" * 3000, of_value=True)],  # a name that is too long, told in full
]


def edited(text: bytes, edit: Edit) -> bytes:
    """Return the content of a file after a change."""
    if edit.of_value:
        lines = text.split(b"\n")
        row = edit.place % len(lines)
        values = lines[row].split(b",")
        values[edit.place // len(lines) % len(values)] = edit.new
        lines[row] = b",".join(values)
        return b"\n".join(lines)
    at = edit.place % (len(text) + 1)
    return text[:at] + edit.new + text[at + edit.length :]


@pytest.fixture
def target(tmp_path: Path) -> Target:
    bundle = tmp_path / "bundle.yaml"
    bundle.write_text(BUNDLE)

    def damage_and_read(damage: list[Edit]) -> None:
        contents = {name: text.encode() for name, text in FILES.items()}
        for edit in damage:
            contents[edit.file] = edited(contents[edit.file], edit)
        for name, content in contents.items():
            (tmp_path / name).write_bytes(content)
        refused = f"{tmp_path}: read"
        try:
            for curve in load_curves(tmp_path):
                assert np.isfinite(curve.position).all()
                assert all(map(is_loss, curve.loss.tolist()))
        except ValueError as error:
            refused = str(error)
        assert str(tmp_path) in refused
        assert len(refused) < 1000
        try:
            played = read_bundle(bundle, tmp_path)
        except (BundleError, ValueError):
            return
        assert played.ceiling is None or 0 <= played.ceiling <= len(played.jobs)
        jobs = [one.given for one in played.jobs]
        assert Simulation(played.settings, jobs).run(until=5.0).events > 0

    return damage_and_read


@pytest.mark.promise("S5")
def test_any_recordings_are_read_or_refused(target: Target) -> None:
    fuzz(target, damages, 150, FOUND)


@pytest.mark.nightly
def test_any_recordings_for_long(target: Target) -> None:
    fuzz_for_long(target, damages)
