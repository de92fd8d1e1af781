"""The gallery of examples: the page shows what is run, and each night all of it runs and draws its picture."""

from __future__ import annotations

import re
from pathlib import Path

import matplotlib.image
import pytest

from examples import gallery
from examples.gallery import EXAMPLES, PICTURES, Example
from examples.slurm import local_slurm
from tests.conftest import ROOT

PAGE = (ROOT / "docs" / "examples.md").read_text()
each = pytest.mark.parametrize("example", EXAMPLES, ids=lambda example: example.name)


def assert_drawn(picture: Path) -> None:
    """Assert that a file is a picture with something on it."""
    pixels = matplotlib.image.imread(picture)
    assert min(pixels.shape[:2]) > 200
    paper = pixels[0, 0]
    assert 0.01 < (abs(pixels - paper).max(axis=2) > 0.1).mean() < 0.9


@each
def test_the_page_has_its_command(example: Example) -> None:
    assert example.command in PAGE


@pytest.mark.parametrize("picture", sorted(PICTURES.iterdir()), ids=lambda path: path.stem)
def test_a_picture_is_on_the_card_of_its_example(picture: Path) -> None:
    [card] = [card for card in PAGE.split("\n## ")[1:] if f"(gallery/{picture.name})" in card]
    [example] = [example for example in EXAMPLES if example.name == picture.stem]
    assert f"```bash\n{example.command}\n```" in card
    assert re.search(r"\b\d+ s here\b", card)
    assert_drawn(picture)


def test_an_unknown_name_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        gallery.main(["tabula"])
    assert "NAME must be one of vision, text, cartpole, " in capsys.readouterr().err


def test_slurm_that_is_missing_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local_slurm, "PATH", "/nowhere")
    [slurm] = [example for example in EXAMPLES if example.slurm]
    assert slurm.missing == ", ".join(local_slurm.PROGRAMS)


@pytest.mark.nightly
@each
def test_it_runs_and_draws(example: Example, tmp_path: Path) -> None:
    if example.missing:
        pytest.skip(f"needs {example.missing}")
    said, _ = gallery.run(example, tmp_path / "picture.png")
    assert re.search(example.says, said), said
    assert_drawn(tmp_path / "picture.png")
