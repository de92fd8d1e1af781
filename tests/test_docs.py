"""The README's bundle is read as it is printed."""

from __future__ import annotations

import re
from pathlib import Path

import yaml

from lightning_core.launch.bundle import Bundle
from lightning_core.types import BatchTarget, LossTarget
from tests.conftest import ROOT


def test_the_readme_s_bundle_can_be_read(tmp_path: Path) -> None:
    [text] = re.findall(r"```yaml\n(.*?)```", (ROOT / "README.md").read_text(), re.S)
    (tmp_path / "vit.yaml").write_text("model: {class_path: tests.tiny.Line}")
    read = Bundle.from_dict(yaml.safe_load(text), tmp_path)
    assert [spec.job.target for spec in read.jobs] == [LossTarget("loss", 0.35), BatchTarget(2000)]


def test_the_example_s_bundle_is_sound() -> None:
    Bundle.from_file(ROOT / "examples" / "digits" / "bundle.yaml").check()
