"""What loggers wrote of forecasts and outcome, read back from their files and compared with what they were given."""

from __future__ import annotations

import csv
import importlib
import json
import logging
import struct
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from lightning.pytorch.loggers import CSVLogger, Logger, MLFlowLogger, TensorBoardLogger, WandbLogger
from lightning.pytorch.utilities import rank_zero_only

from lightning_core.agent.steering.fit_signals import JobEnded
from lightning_core.callbacks import CoreCallback
from lightning_core.callbacks.logger_runs import call_it_a_success, finish_run
from lightning_core.core.answers import End, Verdict
from lightning_core.core.reasons import Reason
from lightning_core.core.targets import BatchTarget
from tests.callbacks.test_callback import Script, fit, grant, steered
from tests.tiny import Line

# Batches at which each metric was logged, in this order, with the value.
Written = dict[str, list[tuple[int, float]]]
NAMES = {f"lightning_core/{name}" for name in ("share", "seconds_left", "seconds_to_spare", "verdict")}


class Kept(Logger):
    """Keeps what it is given."""

    name, version = "kept", 0

    def __init__(self) -> None:
        super().__init__()
        self.written: Written = {}

    @rank_zero_only
    def log_metrics(self, metrics: dict[str, float], step: int | None = None) -> None:
        assert step is not None
        for name in NAMES & metrics.keys():
            self.written.setdefault(name, []).append((step, metrics[name]))

    def log_hyperparams(self, *_: Any, **__: Any) -> None:
        """Nothing of it is compared."""


class Raises(Kept):
    """A logger whose server is away."""

    asked = 0

    def log_metrics(self, metrics: dict[str, float], step: int | None = None) -> None:
        self.asked += 1
        raise ConnectionError("no route to the server")


# ------------------------------------------------------------------------- each logger, and how its files are read


def of_csv(folder: Path) -> tuple[Logger, Callable[[], Written]]:
    logger = CSVLogger(folder)

    def read() -> Written:
        with (Path(logger.log_dir) / "metrics.csv").open(newline="") as file:
            rows = list(csv.DictReader(file))
        return {name: [(int(row["step"]), float(row[name])) for row in rows if row[name]] for name in NAMES}

    return logger, read


def of_tensorboard(folder: Path) -> tuple[Logger, Callable[[], Written]]:
    logger = TensorBoardLogger(folder)

    def read() -> Written:
        event_pb2: Any = importlib.import_module("tensorboardX.proto.event_pb2")
        [file] = Path(logger.log_dir).glob("events.out.tfevents.*")
        data, at, found = file.read_bytes(), 0, Written()
        while at < len(data):
            [length] = struct.unpack_from("<Q", data, at)
            event = event_pb2.Event.FromString(data[at + 12 : at + 12 + length])
            at += 12 + length + 4
            for value in event.summary.value:
                found.setdefault(value.tag, []).append((event.step, value.simple_value))
        return {name: found[name] for name in NAMES}

    return logger, read


def leveldb_records(data: bytes) -> Iterator[bytes]:
    """Records of a file of W&B: after seven bytes of its own, the format of LevelDB's log."""
    assert data[:4] == b":W&B"
    at, record = 7, b""
    while at + 7 <= len(data):
        if (left := 2**15 - at % 2**15) < 7:  # no part of a record begins at the end of a block
            at += left
            continue
        _, length, kind = struct.unpack_from("<IHB", data, at)
        record += data[at + 7 : at + 7 + length]
        at += 7 + length
        if kind in (1, 4):  # whole, or the last part
            yield record
            record = b""


def of_wandb(folder: Path) -> tuple[Logger, Callable[[], Written]]:
    pytest.importorskip("wandb", reason="make setup-loggers")
    logger = WandbLogger("fit", save_dir=folder, offline=True)

    def read() -> Written:
        importlib.import_module("wandb").finish()
        internal: Any = importlib.import_module("wandb.proto.wandb_internal_pb2")
        [file] = folder.glob("wandb/offline-run-*/run-*.wandb")
        records = [internal.Record.FromString(record) for record in leveldb_records(file.read_bytes())]
        # What is drawn is drawn over Lightning's step, not over the number of the row.
        assert ("*", "trainer/global_step") in [(one.metric.glob_name, one.metric.step_metric) for one in records]
        found = Written()
        for row in (one.history.item for one in records if one.WhichOneof("record_type") == "history"):
            values = {item.key or "/".join(item.nested_key): json.loads(item.value_json) for item in row}
            for name in NAMES & values.keys():
                found.setdefault(name, []).append((values["trainer/global_step"], values[name]))
        return found

    return logger, read


def of_mlflow(folder: Path) -> tuple[Logger, Callable[[], Written]]:
    for module in ("mlflow", "sqlalchemy", "alembic"):
        pytest.importorskip(module, reason="make setup-loggers")
    logger = MLFlowLogger("fits", tracking_uri=f"sqlite:///{folder / 'mlflow.db'}", artifact_location=str(folder))

    def read() -> Written:
        client: Any = importlib.import_module("mlflow").MlflowClient(f"sqlite:///{folder / 'mlflow.db'}")
        assert client.get_run(logger.run_id).info.status == "FINISHED"
        found = {name: client.get_metric_history(logger.run_id, name) for name in NAMES}
        in_order = {name: sorted(rows, key=lambda row: (row.timestamp, row.step)) for name, rows in found.items()}
        return {name: [(row.step, row.value) for row in rows] for name, rows in in_order.items()}

    return logger, read


# ------------------------------------------------------------------------------------------------------- the fits


def assert_same(found: Written, given: Written) -> None:
    for name in NAMES:  # single precision is enough
        assert [step for step, _ in found[name]] == [step for step, _ in given[name]]
        assert [value for _, value in found[name]] == pytest.approx([value for _, value in given[name]], rel=1e-5)


class Patient(Line):
    """Its batches last 20 ms; half way it waits until a forecast was written, which a busy machine makes late."""

    def __init__(self, batches: int, kept: Kept) -> None:
        super().__init__(pause=0.02)
        self.middle, self.kept = batches // 2, kept

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        if self.middle <= self.global_step < 2 * self.middle - 1 and not self.kept.written.keys() >= NAMES:
            time.sleep(1)
        return super().training_step(batch, batch_idx)


def logged(logger: Logger, batches: int) -> Written:
    """What a fit of some batches of 20 ms gave its loggers, one of which is this one."""
    kept = Kept()
    callback = CoreCallback("job", deadline="1h", target=BatchTarget(batches), pool="local")
    fit(callback, Patient(batches, kept), logger=[logger, kept], max_steps=2 * batches, max_epochs=-1)
    assert kept.written.keys() == NAMES
    step, verdict = kept.written["lightning_core/verdict"][-1]
    assert (verdict, step >= batches) == (3.0, True)  # the end is heard of some batches later
    return kept.written


@pytest.mark.parametrize("of", [of_csv, of_tensorboard])
def test_what_a_logger_wrote_is_what_it_was_given(
    of: Callable[[Path], tuple[Logger, Callable[[], Written]]], tmp_path: Path
) -> None:
    logger, read = of(tmp_path)
    given = logged(logger, 40)
    assert_same(read(), given)


@pytest.mark.nightly
@pytest.mark.parametrize("of", [of_csv, of_tensorboard, of_wandb, of_mlflow])
def test_a_fit_of_six_seconds_leaves_a_forecast_for_each_half_of_a_second(
    of: Callable[[Path], tuple[Logger, Callable[[], Written]]], tmp_path: Path
) -> None:
    logger, read = of(tmp_path)
    given = logged(logger, 300)
    assert_same(read(), given)
    for rows in given.values():
        assert len(rows) >= 10
        assert [step for step, _ in rows] == sorted(step for step, _ in rows)


def test_a_submitted_job_that_ends_without_its_target_leaves_its_outcome() -> None:
    kept, script = Kept(), Script(grant(1, 1.0))
    end = threading.Timer(0.3, lambda: script.say(End("job", 2, Verdict.CANCELLED, Reason("cancelled"))))
    end.start()
    with pytest.raises(JobEnded):
        fit(steered(script), Line(pause=0.01), logger=[kept], max_epochs=-1)
    end.join()
    assert kept.written["lightning_core/verdict"][-1][1] == Verdict.CANCELLED.number


@pytest.mark.nightly
def test_the_next_job_of_a_process_has_a_run_of_its_own(tmp_path: Path) -> None:
    pytest.importorskip("wandb", reason="make setup-loggers")
    files = list[Path]()
    for name in ("one", "two"):
        logger = WandbLogger(name, save_dir=tmp_path / name, offline=True)
        (tmp_path / name).mkdir()
        logged(logger, 40)
        finish_run(well=True)
        files += (tmp_path / name).glob("wandb/offline-run-*/run-*.wandb")
    assert [file.relative_to(tmp_path).parts[0] for file in files] == ["one", "two"]


def test_a_logger_that_raises_is_warned_about_once_and_the_training_goes_on(caplog: pytest.LogCaptureFixture) -> None:
    broken = Raises()
    with caplog.at_level(logging.WARNING, logger="lightning_core"):
        logged(broken, 40)
    assert broken.asked == 1
    said = [record.getMessage() for record in caplog.records if "no route to the server" in record.getMessage()]
    assert said == ["job: training continues without forecasts in Raises: ConnectionError: no route to the server"]


def test_the_run_that_a_job_left_open_is_finished(monkeypatch: pytest.MonkeyPatch) -> None:
    wandb, ended = SimpleNamespace(run=None), list[int]()
    wandb.finish = lambda exit_code: ended.append(exit_code)
    monkeypatch.setitem(sys.modules, "wandb", wandb)
    finish_run(well=True)
    assert ended == []
    wandb.run = object()
    finish_run(well=True)
    finish_run(well=False)
    assert ended == [0, 1]
    wandb.finish = lambda exit_code: 1 / 0
    finish_run(well=True)  # said in the log of the worker, and no more
    monkeypatch.delitem(sys.modules, "wandb")
    finish_run(well=True)


def test_a_training_that_left_as_it_was_told_has_not_failed(caplog: pytest.LogCaptureFixture) -> None:
    statuses = list[str]()
    good, bad = SimpleNamespace(finalize=statuses.append), SimpleNamespace(finalize=lambda status: 1 / 0)
    trainer: Any = SimpleNamespace(loggers=[bad, good])
    call_it_a_success(trainer)
    assert statuses == ["success"]
    assert "SimpleNamespace could not be closed: ZeroDivisionError" in caplog.text
