"""A script that torchrun starts is one job of its pool: rank 0 speaks for it, also after torchrun has restarted it."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from lightning_core.core.answers import JobStatus, State, Verdict
from tests.conftest import ROOT
from tests.machines import Machine, network, why_not
from tests.socket_servers import Pool, found_pool

SCRIPT = """
import os
import lightning.pytorch as pl
from lightning.pytorch.callbacks import ModelCheckpoint
from tests.tiny import QUIET, Line, Points

class Dies(pl.Callback):
    def on_train_batch_end(self, trainer, *_):
        first = os.environ["TORCHELASTIC_RESTART_COUNT"] == "0"
        if first and trainer.global_rank == 1 and trainer.global_step == int(os.environ["DIES_AT"]):
            os._exit(9)

kept = ModelCheckpoint("kept", save_last=True, every_n_train_steps=10, save_top_k=0)
quiet = {**QUIET, "enable_checkpointing": True}
trainer = pl.Trainer(max_epochs=-1, devices=2, strategy="ddp", callbacks=[kept, Dies()], **quiet)
trainer.fit(Line(pause=0.01), datamodule=Points(), ckpt_path="last")
print("rank", trainer.global_rank, "of", trainer.world_size, "ends after", trainer.global_step, flush=True)
"""


@pytest.fixture
def pool() -> Iterator[Pool]:
    """A pool with two devices, in a folder by which scripts find it."""
    with found_pool(devices=2) as made:
        yield made


def run(pool: Pool, folder: Path, dies_at: int, *options: str) -> tuple[str, list[JobStatus]]:
    """Run the script under torchrun, and return what it said and the jobs of the pool."""
    (folder / "train.py").write_text(SCRIPT)
    terms = {"JOB": "pair", "DEADLINE": "1h", "TARGET": "100 batches", "POOL": str(pool.path.parent)}
    environment = {**os.environ, **{f"LIGHTNING_CORE_{name}": value for name, value in terms.items()}}
    environment |= {"PYTHONPATH": f"{ROOT}:{os.environ.get('PYTHONPATH', '')}", "OMP_NUM_THREADS": "1"}
    environment |= {"DIES_AT": str(dies_at)}
    command = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--standalone",
        "--nproc-per-node=2",
        *options,
        "train.py",
    ]
    done = subprocess.run(
        command, cwd=folder, env=environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=280
    )
    assert done.returncode == 0, done.stdout
    return done.stdout, pool.do(pool.actor.status())[1]


@pytest.mark.nightly
def test_two_ranks_of_torchrun_are_one_job_with_two_devices(pool: Pool, tmp_path: Path) -> None:
    said, [job] = run(pool, tmp_path, -1)
    assert "rank 0 of 2 ends after" in said
    assert "rank 1 of 2 ends after" in said
    assert said.count("lightning_core: pair: met") == 1
    assert (job.name, job.state, job.verdict, job.incarnation) == ("pair", State.ENDED, Verdict.MET, 1)
    assert job.batches >= 100


@pytest.mark.nightly
def test_a_rank_that_dies_under_torchrun_is_restarted_as_the_same_job(pool: Pool, tmp_path: Path) -> None:
    # One restart is ours. On a busy machine gloo may not find the other rank after it: torchrun then restarts both.
    said, jobs = run(pool, tmp_path, 45, "--max-restarts=3")
    assert "pair: resumed with its deadline" in said
    assert said.count("lightning_core: pair: met") == 1
    assert {job.name for job in jobs} == {"pair"}
    assert jobs[-1].verdict is Verdict.MET
    assert jobs[-1].deadline - jobs[-1].submitted_at < 3600


TWO_MACHINES = """
import os, sys
import lightning.pytorch as pl
import torch
from lightning_core.callbacks import CoreCallback
from tests.matrix.training import digest, ours_left
from tests.tiny import QUIET, Line, ValidatedPoints

pool = sys.argv[1]
pl.seed_everything(5, verbose=False)
callbacks = [] if pool == "none" else [CoreCallback("pair", "1h", "val_loss<=1e-9", pool=pool, keep_best="best")]
trainer = pl.Trainer(max_epochs=4, devices=1, num_nodes=2, strategy="ddp", callbacks=callbacks, **QUIET)
model = Line()
trainer.fit(model, datamodule=ValidatedPoints())
print("rank", trainer.global_rank, "of", trainer.world_size, digest(model.state_dict()), ours_left(), flush=True)
"""


@pytest.mark.nightly
@pytest.mark.skipif(bool(why_not()), reason=why_not())
def test_a_script_on_two_machines_trains_as_without_us(tmp_path: Path) -> None:
    """Alone, in a pool that both machines see, and in one that only the machine of rank 0 knows of, or the other."""
    (tmp_path / "train.py").write_text(TWO_MACHINES)
    said = {}
    with found_pool(devices=2) as pool, network(tmp_path, 2) as machines:
        here, nowhere = str(tmp_path / "here"), str(tmp_path / "nowhere")
        (tmp_path / "here").mkdir()
        shutil.copytree(pool.path.parent, tmp_path / "here/pool", ignore=lambda *_: ["pool", "socket"])
        homes = {"none": (nowhere, nowhere), "local": (nowhere, nowhere), "auto": (here, here)}
        homes |= {"auto, first": (here, nowhere), "auto, second": (nowhere, here)}
        for mode, known in homes.items():
            said[mode] = on_two_machines(machines, mode.partition(",")[0], known, tmp_path)
        joined = {mode for mode, texts in said.items() if "pair: joined " in "".join(texts)}
    without = {line for text in said["none"] for line in re.findall(r"rank \d of 2 \w+ \[\]", text)}
    assert len(without) == 2
    assert joined == {"auto", "auto, first"}
    for mode, texts in said.items():
        for line in without:
            assert any(line in text for text in texts), (mode, texts)
        assert ("lightning_core: pair: missed" in "".join(texts)) == (mode != "none"), (mode, texts)


def on_two_machines(machines: list[Machine], mode: str, homes: tuple[str, str], folder: Path) -> list[str]:
    """Run the script under torchrun on each machine; return what each has said."""
    logs = [folder / f"{number}-{len(list(folder.iterdir()))}.log" for number in range(2)]
    started = []
    for number, (machine, home, log) in enumerate(zip(machines, homes, logs, strict=True)):
        environment = {**os.environ, "PYTHONPATH": f"{ROOT}:{os.environ.get('PYTHONPATH', '')}", "OMP_NUM_THREADS": "1"}
        environment |= {"GLOO_SOCKET_IFNAME": "eth", "TP_SOCKET_IFNAME": "eth", "LIGHTNING_CORE_HOME": home}
        command = [
            sys.executable, "-m", "torch.distributed.run", "--nnodes=2", f"--node-rank={number}", "--nproc-per-node=1",
            f"--master-addr={machines[0].address}", "--master-port=29501", str(folder / "train.py"), mode,
        ]  # fmt: skip
        started.append(machine.start(command, environment, log))
    codes = [process.wait(timeout=280) for process in started]
    texts = [log.read_text() for log in logs]
    assert codes == [0, 0], "\n".join(texts)
    return texts
