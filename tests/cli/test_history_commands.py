"""``lightning-core history``: runs are listed, shown, imported and forgotten."""

from __future__ import annotations

import itertools
import json
import re
import time
from pathlib import Path

import pytest

from lightning_core.cli.main import main
from lightning_core.core.events import Cell, Report, Submit
from lightning_core.core.jobs import Job
from lightning_core.core.targets import LossTarget
from lightning_core.scheduler.settings import Settings
from lightning_core.server.host import Host
from lightning_core.storage.runs.run_store import FILE, RunStore


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of the default pool."""
    monkeypatch.setenv("LIGHTNING_CORE_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    return tmp_path / "home" / "pool"


def recording(path: Path, losses: int = 20) -> Path:
    path.parent.mkdir(exist_ok=True, parents=True)
    path.write_text("step,loss\n" + "".join(f"{10 * n},{2.0 / n}\n" for n in range(1, losses + 1)))
    return path


def run(*words: str) -> int:
    return main(["history", *words])


def test_a_recording_is_imported_listed_shown_and_forgotten(
    tmp_path: Path, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = recording(tmp_path / "vit-3.csv")
    assert run("import", str(path), "--like", "vision", "--target", "loss<=0.5", "--batch-size", "32") == 0
    assert "1 imported" in capsys.readouterr().out
    assert run("import", str(path), "--like", "vision", "--target", "loss<=0.5", "--batch-size", "32") == 0
    assert "0 imported, 1 were already there" in capsys.readouterr().out
    assert run("list") == 0
    out = capsys.readouterr().out
    assert all(word in out for word in ("vit-3", "met", "loss <= 0.5", "vision"))
    assert run("show", "vit-3") == 0
    out = capsys.readouterr().out
    assert "met after 40 batches" in out
    assert "batch size: 32" in out
    assert "10: 2" in out
    assert run("show", "vit-3", "--json") == 0
    [body] = json.loads(capsys.readouterr().out)
    assert (body["like"], body["met_at"], body["curve"][0][0]) == ("vision", 40, 10)
    assert run("forget", "--like", "vision") == 0
    assert "1 forgotten" in capsys.readouterr().out
    assert run("list", "--json") == 0
    assert json.loads(capsys.readouterr().out) == []


def test_a_metric_that_grows_is_kept_as_it_falls(tmp_path: Path, folder: Path) -> None:
    path = tmp_path / "acc.csv"
    path.write_text("step,loss\n10,0.2\n20,0.5\n30,0.95\n")
    assert run("import", str(path), "--target", "val_acc>=0.9") == 0
    store = RunStore(folder / FILE)
    [kept] = store.runs()
    assert (kept.metric, kept.losses, kept.met_at) == ("1 - val_acc", (0.8, 0.5, 0.05), 30)
    store.close()


def test_a_folder_is_imported_and_what_is_no_recording_is_named(
    tmp_path: Path, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    recording(tmp_path / "many" / "a.csv")
    recording(tmp_path / "many" / "deep" / "b.csv")
    (tmp_path / "many" / "bad.csv").write_text("epoch,loss\n1,2\n")
    assert run("import", str(tmp_path / "many")) == 0
    out = capsys.readouterr().out
    assert "2 imported" in out
    assert "left out" in out
    assert "bad.csv:1" in out


def test_a_tensorboard_log_is_imported(tmp_path: Path, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tensorboard = pytest.importorskip("tensorboardX")
    writer = tensorboard.SummaryWriter(str(tmp_path / "version_0"))
    for step in range(0, 200, 10):
        writer.add_scalar("train_loss", 3.0 / (step + 1), step)
        writer.add_scalar("epoch", 1.0, step)
    writer.close()
    assert run("import", str(tmp_path / "version_0"), "--target", "train_loss<=0.1") == 0
    store = RunStore(folder / FILE)
    [kept] = store.runs()
    assert (kept.name, kept.metric, kept.batches[:2], kept.met_at) == ("version_0", "train_loss", (1, 11), 31)
    store.close()
    capsys.readouterr()
    assert run("import", str(tmp_path / "version_0"), "--tag", "val_loss") == 2
    error = capsys.readouterr().err
    assert "no scalar 'val_loss': its scalars are epoch, train_loss; name one with --tag" in error
    [log] = (tmp_path / "version_0").iterdir()
    log.write_bytes(log.read_bytes()[:-5])  # cut off, as by a kill
    assert run("import", str(log), "--target", "train_loss<=0.1", "--like", "cut") == 0
    log.write_bytes(b"\x09" + b"\0" * 11 + b"nonsense!" * 40)
    assert run("import", str(log)) == 2
    assert "error: " in capsys.readouterr().err


def test_the_runs_of_a_journal_are_imported(tmp_path: Path, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (own := tmp_path / "run").mkdir(mode=0o700)
    host = Host(Settings(), own / "journal.db")
    host.handle(Submit((Job("vit", 600.0, LossTarget("loss", 0.5), model="mine.Vit"),)))
    for n in range(1, 20):
        host.handle(Report("vit", 1, n, 9, 10 * n, 1.0 * n, (Cell(n, 10 * n, 3.0 / n),)))
    host.close()
    assert run("import", str(own)) == 0
    assert run("list", "--json") == 0
    [body] = json.loads(capsys.readouterr().out.partition("\n")[2])
    assert (body["name"], body["model"], body["verdict"]) == ("vit", "mine.Vit", "met")
    assert abs(body["ended_at"] - time.time()) < 600.0


def test_why_and_the_report_say_what_a_forecast_rests_on(
    tmp_path: Path, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (own := tmp_path / "run").mkdir(mode=0o700)
    (store := tmp_path / "store").mkdir(mode=0o700)
    times = itertools.count()
    host = Host(Settings(), own / "journal.db", lambda: next(times) / 2, history=store)
    for goal, cells in ((0.1, 30), (0.01, 12)):
        host.handle(Submit((Job("vit", 600.0, LossTarget("loss", goal), model="mine.Vit"),)))
        incarnation = host.scheduler.incarnation("vit")
        for n in range(1, cells + 1):
            host.handle(Report("vit", incarnation, n, 9, 10 * n, 1.0 * n, (Cell(n, 10 * n, 1.0 / n),)))
    host.close()
    assert main(["why", str(own), "vit"]) == 0
    told = re.search(r"^forecast like vit, (\d+)%$", capsys.readouterr().out, re.MULTILINE)
    assert told is not None
    assert int(told[1]) > 50
    assert main(["report", str(own), "--out", str(tmp_path / "page.html")]) == 0
    assert "Last forecast like vit, " in (tmp_path / "page.html").read_text()


@pytest.mark.parametrize(
    ("words", "error"),
    [
        (["list"], "no runs are kept there; name the folder of a pool with --folder DIR"),
        (["import", "missing.csv"], "missing.csv: No such file or directory"),
        (["import", "."], "holds no runs"),
        (["import", ".", "--target", "100 batches"], "--target must name a metric"),
        (["import", ".", "--target", "100"], "target must be like"),
    ],
)
def test_mistakes_are_one_line(words: list[str], error: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(*words) == 2
    said = capsys.readouterr().err
    assert error in said
    assert said.count("\n") == 1


def test_a_name_that_is_not_kept_is_answered_with_the_nearest(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run("import", str(recording(tmp_path / "vit-3.csv")))
    for words in (["show", "vit-4"], ["forget", "vit-4"]):
        assert run(*words) == 2
        assert "did you mean 'vit-3'" in capsys.readouterr().err
    assert run("forget") == 2
    assert "not all runs are forgotten at once" in capsys.readouterr().err
    assert run("forget", "--older-than", "1h") == 0
    assert "0 forgotten" in capsys.readouterr().out
