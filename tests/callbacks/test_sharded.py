"""What a job on several ranks can do under each strategy, with real ranks over gloo; the table of it is in the docs.

FSDP needs GPUs, and is checked by ``make gpu-check``: on two if there are, else on one.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from lightning_core.core.events import Checkpoint
from lightning_core.storage.generations import generation_path
from lightning_core.storage.job_checkpoints import FILE, adopt, checkpoint_folder, find
from lightning_core.storage.manifests import verify
from lightning_core.storage.saved_files import files_of
from tests.conftest import ROOT
from tests.matrix.forks import Ended, Forks
from tests.sharded import STRATEGIES

TRAIN = "tests.sharded:train"
COLUMNS = (*STRATEGIES, "DeepSpeed")
ON_GPUS = "FSDP"


class Ranks:
    """Trains the jobs of one check.

    Args:
        forks: Process that forks.
        column: Head of the column of the strategy.
        folder: Folder of the check.
    """

    def __init__(self, forks: Forks, column: str, folder: Path) -> None:
        self.forks, self.column, self.folder = forks, column, folder
        self.on_gpus = column == ON_GPUS
        self.number = min(2, torch.cuda.device_count()) if self.on_gpus else 2
        """Number of ranks."""
        self.environment = {"TESTS_ON_GPUS": "1"} if self.on_gpus else {}
        """Variables of their processes."""

    def train(self, job: str, incarnation: int = 1, ranks: int | None = None, **options: Any) -> list[Any]:
        """Train an incarnation of a job; return what each rank has found."""
        ended = self.run(job, incarnation, ranks, **options)
        assert [one.code for one in ended] == [0] * len(ended), "\n".join(one.output[-3000:] for one in ended)
        return [one.value for one in ended]

    def run(self, job: str, incarnation: int = 1, ranks: int | None = None, **options: Any) -> list[Ended]:
        home, number = str(self.folder / job), ranks or self.number
        return self.forks.run(
            TRAIN, home, self.column, incarnation, options, ranks=number, environment=self.environment
        )

    def go_on(self, job: str, incarnation: int, saved: list[Any]) -> None:
        """Put what was saved into the folder of the next incarnation, as a pool does."""
        found = find(checkpoint_folder(self.folder / job, incarnation))
        assert found is not None
        assert found.checkpoint == Checkpoint(*saved)
        assert adopt(self.folder / job, incarnation + 1, {found.checkpoint.sha256}) is not None

    def assert_same(self, whole: list[Any], last: list[Any], *, exactly: bool = True) -> None:
        """Assert that a training has ended as one that was never interrupted, by its losses since then."""
        for before, after in zip(whole, last, strict=False):
            assert after["steps"] == before["steps"]
            expected = {step: before["losses"][step] for step in after["losses"]}
            if exactly and not self.on_gpus:
                assert (after["losses"], after["weights"]) == (expected, before["weights"])
            else:
                assert after["losses"] == pytest.approx(expected, rel=1e-9)


# -------------------------------------------------------------------------------------------------------- the checks


def check_hold(ranks: Ranks) -> None:
    """Check that all ranks hold, and go on."""
    found = ranks.train("a", hold_at=5, target="1000000 batches", pause=0.01)
    assert found[0]["held"] == [True, True]
    assert len({one["steps"] for one in found}) == 1
    assert [one["ended"].partition(":")[0] for one in found] == ["JobReleased"] * ranks.number


def check_stop(ranks: Ranks) -> None:
    """Check that all ranks stop together when the target is met."""
    found = ranks.train("a", target="val_loss<=4")
    assert len({one["steps"] for one in found}) == 1
    assert found[0]["ended"] == "ended"


def check_resume(ranks: Ranks) -> None:
    """Check that a launched job is saved, leaves, and resumes on as many ranks as if it had stayed."""
    for data in ("placed", "plain"):  # within an epoch, and at the end of one
        options: dict[str, Any] = {"data": data, "target": "40 batches", "pause": 0.01}
        whole = ranks.train(f"whole-{data}", **options)
        left = ranks.train(data, leave_at=8, **options)
        assert left[0]["ended"].startswith("JobReleased")
        assert len(left[0]["losses"]) == left[0]["steps"] < 40
        ranks.go_on(data, 1, left[0]["saved"])
        ranks.assert_same(whole, ranks.train(data, 2, **options))


def check_other_number(ranks: Ranks) -> None:
    """Check that it resumes on another number of ranks."""
    resize(ranks, ((ranks.number, 6), (1, 11), (ranks.number, 0)))


def resize(ranks: Ranks, sizes: tuple[tuple[int, int], ...]) -> None:
    options: dict[str, Any] = {"data": "elastic", "micro_batches": 4, "dropout": False, "target": "40 batches",
                               "pause": 0.005}  # fmt: skip
    whole = ranks.train("whole", **options)
    found: list[Any] = []
    for incarnation, (number, leave_at) in enumerate(sizes, start=1):
        found = ranks.train("a", incarnation, number, leave_at=leave_at, **options)
        if leave_at:
            ranks.go_on("a", incarnation, found[0]["saved"])
    # The loss of a rank is that of its own samples; the last incarnation has as many ranks as the whole.
    assert len(found) == len(whole)
    last = {step for step in found[0]["losses"] if int(step) > 30}
    assert len(last) > 5
    for before, after in zip(whole, found, strict=True):
        expected = {step: before["losses"][step] for step in last}
        assert {step: after["losses"][step] for step in last} == pytest.approx(expected, rel=1e-9)


def check_keep_best(ranks: Ranks) -> None:
    """Check that the best model is kept, as one file, while training goes on."""
    found = ranks.train("a", keep_best=True, one_file=True, target="val_loss<=1e-9", leave_at=35)
    path = ranks.folder / "a" / "best.ckpt"
    assert found[0]["best"] == str(path)
    manifest = verify(path)
    assert manifest.value is not None
    content = torch.load(path, weights_only=True)
    assert content["state_dict"]["body.0.weight"].shape == (8, 4)
    assert content["global_step"] == manifest.batches


def check_slurm(ranks: Ranks) -> None:
    """Check that a script is saved before the end of its Slurm job, requeued, and resumes."""
    folder = ranks.folder / "slurm"
    (folder / "bin").mkdir(parents=True)
    command, requeued = folder / "bin" / "scontrol", folder / "requeued"
    command.write_text(f'#!/bin/sh\necho "$@" >> {requeued}\n')
    command.chmod(0o755)
    slurm = "tests.sharded:train_in_slurm"
    first = ranks.forks.run(slurm, str(folder), ranks.column, 60, 0.3, ranks=2, environment=ranks.environment)
    assert [one.code for one in first] == [0, 0], first[0].output[-3000:]
    assert [one.value for one in first] == [[0, 60]] * 2
    assert requeued.read_text() == "requeue 7\n"
    second = ranks.forks.run(slurm, str(folder), ranks.column, 80, ranks=2, environment=ranks.environment)
    assert [one.code for one in second] == [0, 0], second[0].output[-3000:]
    assert 0 < second[0].value[0] < 60
    assert second[0].value[1] == 80


def check_nan(ranks: Ranks) -> None:
    """Check that it goes back before NaN losses (`on_nan: restart`)."""
    whole = ranks.train("whole", target="40 batches", pause=0.01)
    bad = ranks.train("a", target="40 batches", pause=0.01, save_every=0.02, bad_from=20)
    batches, _ = bad[0]["saved"]
    assert 0 < batches <= 20
    ranks.go_on("a", 1, bad[0]["saved"])
    again = ranks.train("a", 2, target="40 batches", pause=0.01)
    assert len(again[0]["losses"]) == 40 - batches
    ranks.assert_same(whole, again)


CHECKS: dict[str, Callable[[Ranks], None]] = {
    "hold": check_hold, "stop": check_stop, "resume": check_resume, "other number": check_other_number,
    "keep best": check_keep_best, "slurm": check_slurm, "nan": check_nan,
}  # fmt: skip
# Rows without a check: what no job on several ranks can do, with the reason.
NEVER = {
    "It takes turns with other jobs on its devices": "jobs of one device take turns; several ranks train, or are held",
    "It leaves the memory of its GPU while it is held (`on_hold`)": "`on_hold` moves the state of one process; refused "
    "before anything starts",
}
SHARDS = "if the strategy saves files: `save_distributed_checkpoint: false`, or FSDP's `state_dict_type: full`"
NOT_HERE = "the same agreement of ranks as with DDP; not run, because DeepSpeed is not installed where the tests run"
REFUSED = (
    "a launched job with DeepSpeed is refused: it unpickles whatever is in its checkpoints, and loads them on as many "
    "ranks only"
)
CANNOT: dict[tuple[str, str], str] = {
    ("other number", "tensor parallel"): "the ranks of a tensor train on the same samples; refused before it starts",
    **{(name, "DeepSpeed"): REFUSED for name in ("resume", "other number", "nan")},
    ("keep best", "DeepSpeed"): "it writes files without a plugin, which could not be verified; the log says so",
}
UNTRIED: dict[tuple[str, str], str] = {(name, "DeepSpeed"): NOT_HERE for name in ("hold", "stop", "slurm")}
REMARKS: dict[tuple[str, str], str] = {("keep best", name): SHARDS for name in ("FSDP", "FSDP2", "tensor parallel")}
CELLS = [(name, column) for name in CHECKS for column in STRATEGIES if (name, column) not in CANNOT]
# Checks of FSDP that need two GPUs, or a process for each in Slurm.
TWO_GPUS = ("other number", "slurm")
# What `make test` runs; the rest runs each night.
BY_DAY = {("resume", "FSDP2"), ("other number", "FSDP2")}


def cases() -> list[Any]:
    found = []
    for name, column in CELLS:
        marks = []
        if column == ON_GPUS:
            few = name in TWO_GPUS and torch.cuda.device_count() < 2
            marks = [pytest.mark.gpu, pytest.mark.skipif(few, reason="needs two GPUs")]
        elif (name, column) not in BY_DAY:
            marks = [pytest.mark.nightly]
        found.append(pytest.param(name, column, id=f"{column}-{name}", marks=marks))
    return found


@pytest.mark.promise("R30", "R31")
@pytest.mark.parametrize(("name", "column"), cases())
def test_a_job_can_do_under_its_strategy_what_the_table_says(
    name: str, column: str, forks: Forks, tmp_path: Path
) -> None:
    CHECKS[name](Ranks(forks, column, tmp_path))


def sharded_table() -> str:
    """Return what a job on several ranks can do under each strategy, as the page of sharded models has it."""
    heads = {"FSDP2": "FSDP2 (`ModelParallelStrategy`)"}
    lines = ["| | " + " | ".join(heads.get(column, column) for column in COLUMNS) + " |", "|---" * 6 + "|"]
    reasons: list[str] = []

    def note(reason: str) -> str:
        if reason not in reasons:
            reasons.append(reason)
        return f" ({reasons.index(reason) + 1})"

    def cell(name: str, column: str) -> str:
        if (key := (name, column)) in CANNOT:
            return f"no{note(CANNOT[key])}"
        if key in UNTRIED:
            return f"not run{note(UNTRIED[key])}"
        remark = note(REMARKS[key]) if key in REMARKS else ""
        return ("on GPUs" if column == ON_GPUS else "yes") + remark

    for name, check in CHECKS.items():
        said = (check.__doc__ or "").splitlines()[0].removeprefix("Check that ").rstrip(".")
        lines.append(f"| {said[0].upper()}{said[1:]} | {' | '.join(cell(name, column) for column in COLUMNS)} |")
    for said, reason in NEVER.items():
        lines.append(f"| {said} |" + f" no{note(reason)} |" * len(COLUMNS))
    notes = [f"({number}) {reason}." for number, reason in enumerate(reasons, start=1)]
    return "\n".join([*lines, "", "\n".join(f"- {one}" for one in notes)])


def test_the_page_of_sharded_models_has_the_table() -> None:
    text = (ROOT / "docs/how-to/sharded.md").read_text()
    _, _, rest = text.partition("<!-- strategies: begin -->\n")
    assert rest.partition("<!-- strategies: end -->")[0].strip() == sharded_table()


# ------------------------------------------------------------------------------------------------- beside the table


@pytest.mark.nightly
@pytest.mark.parametrize("column", ["DDP", "FSDP2"])
def test_a_job_is_resized_up_and_down(column: str, forks: Forks, tmp_path: Path) -> None:
    resize(Ranks(forks, column, tmp_path), ((2, 6), (1, 11), (4, 16), (2, 0)))


@pytest.mark.nightly
@pytest.mark.promise("R6")
def test_a_damaged_shard_is_never_loaded(forks: Forks, tmp_path: Path) -> None:
    """The checkpoint before it is, whichever file is damaged."""
    ranks = Ranks(forks, "FSDP2", tmp_path)
    found = ranks.train("a", target="40 batches", save_every=0.01, leave_at=30)
    folder = checkpoint_folder(tmp_path / "a", 1)
    newest, before = (files_of(generation_path(folder / FILE, age)) for age in (0, 1))
    names = [".metadata", "__0_0.distcp", "__1_0.distcp", "meta.pt"]
    assert sorted(path.name for path in newest.iterdir()) == names
    accepted = {verify(generation_path(folder / FILE, age)).sha256 for age in (0, 1)}
    assert found[0]["saved"][1] in accepted
    for name in names:
        home = tmp_path / f"damaged {name}"
        shutil.copytree(tmp_path / "a", home)
        damaged = home / newest.relative_to(tmp_path / "a") / name
        damaged.chmod(0o600)
        content = damaged.read_bytes()
        damaged.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
        chosen = adopt(home, 2, accepted)
        assert chosen is not None
        assert chosen.parent.name == before.parent.name
    again = ranks.train(f"damaged {names[-1]}", 2, target="40 batches")
    assert again[0]["steps"] == 40
    assert len(again[0]["losses"]) > 10


@pytest.mark.promise("R30")
@pytest.mark.parametrize(
    ("fault", "words"),
    [
        ("full_disk_on_rank_1", "shards not saved by rank 1: No space left on device"),
        pytest.param("other_disk_on_rank_1", "not saved by rank 1: .* does not see", marks=pytest.mark.nightly),
    ],
)
def test_a_rank_that_cannot_write_stops_no_training(fault: str, words: str, forks: Forks, tmp_path: Path) -> None:
    """All ranks train on, do the same collectives, and save again later; nothing unfinished stays."""
    ranks = Ranks(forks, "FSDP2", tmp_path)
    ended = ranks.run("a", fault=fault, target="200 batches", pause=0.002, leave_at=8)
    assert [one.code for one in ended] == [0, 0], ended[0].output[-3000:]
    assert re.search(words, ended[0].output)
    assert "Training continues, and saving is tried again" in ended[0].output
    kinds = [[each.kind for each in one.collectives] for one in ended]
    assert kinds[0] == kinds[1]
    left = {path.name for path in checkpoint_folder(tmp_path / "a", 1).iterdir()}
    assert not any(name.startswith("unfinished-") for name in left)
    if fault.startswith("full"):
        assert ended[0].value["ended"].startswith("JobReleased")
        assert find(checkpoint_folder(tmp_path / "a", 1)) is not None
    else:
        assert (ended[0].value["steps"], left) == (200, set())


@pytest.mark.parametrize(
    ("column", "data"), [("DDP", "plain"), pytest.param("FSDP2", "placed", marks=pytest.mark.nightly)]
)
def test_ranks_that_are_told_to_leave_in_the_last_batch_end_together(
    column: str, data: str, forks: Forks, tmp_path: Path
) -> None:
    """The batch that meets the target is the last of its epoch; the first rank alone knows of both."""
    found = Ranks(forks, column, tmp_path).train("a", target="10 batches", leave_at=9, data=data)
    assert [(one["ended"], one["steps"]) for one in found] == [("ended", 10)] * 2
