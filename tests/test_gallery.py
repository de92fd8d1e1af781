"""The gallery of examples: the page shows what is run, and each night all of it runs and draws its picture."""

from __future__ import annotations

import re
from pathlib import Path

import matplotlib.image
import pytest

from examples import gallery
from examples.gallery import EXAMPLES, PICTURES, Example
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
def test_the_page_has_a_card_with_command_and_picture(example: Example) -> None:
    [card] = [card for card in PAGE.split("\n## ")[1:] if f"(gallery/{example.name}.png)" in card]
    assert f"```bash\n{example.command}\n```" in card
    assert re.search(r"\b\d+ s here\b", card)
    assert_drawn(PICTURES / f"{example.name}.png")


def test_each_card_and_each_picture_is_of_an_example() -> None:
    assert PAGE.count("\n## ") == len(EXAMPLES)
    assert {path.stem for path in PICTURES.iterdir()} == {example.name for example in EXAMPLES}


def test_an_unknown_name_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        gallery.main(["tabula"])
    assert "NAME must be one of vision, " in capsys.readouterr().err


def test_what_is_missing_is_named() -> None:
    assert Example("a", "python a.py", "", packages=("sys", "no_such_module")).missing == "no_such_module"


@pytest.mark.nightly
@each
def test_it_runs_and_draws(example: Example, tmp_path: Path) -> None:
    if example.missing:
        pytest.skip(f"needs {example.missing}")
    said, _ = gallery.run(example, tmp_path / "picture.png")
    assert re.search(example.says, said), said
    assert_drawn(tmp_path / "picture.png")
