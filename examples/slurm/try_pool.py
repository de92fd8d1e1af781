"""Submits pool.sbatch to a Slurm of two nodes that is started on this machine, and draws the run.

Run from the repository's root, with Debian's packages slurmctld, slurmd, slurm-client and munge:
``python examples/slurm/try_pool.py``. What it does:

1. starts munged, slurmctld and two slurmd in a temporary folder;
2. changes the two lines of the recipe that say which devices a node has, as on a cluster without GPUs, and submits it
   with three digit models (bundle.yaml);
3. waits until the Slurm job is over, prints how its trainings ended, and draws them.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from examples.run_picture import draw  # noqa: E402
from examples.slurm import local_slurm  # noqa: E402
from lightning_core.storage.journals.journal import Journal  # noqa: E402

HERE = Path(__file__).parent
CHANGES = {"devices=.*": """devices='{"device": 1}'""", "#SBATCH --gpus-per-node=.*": "# no GPUs here"}
# Seconds after which the Slurm job counts as hung.
PATIENCE = 300.0


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--picture", type=Path, default=Path("slurm.png"), metavar="FILE",
                        help="the picture (default slurm.png)")  # fmt: skip
    arguments = parser.parse_args()
    if absent := local_slurm.missing():
        parser.error(f"needs Slurm and munge: {absent} not found")
    recipe = (HERE / "pool.sbatch").read_text()
    for line, new in CHANGES.items():
        recipe = re.sub(rf"^{line}$", new, recipe, flags=re.MULTILINE)
    with tempfile.TemporaryDirectory(prefix="slurm-") as name, local_slurm.slurm(Path(name)) as slurm:
        work = Path(name) / "work"
        work.mkdir()
        (work / "pool.sbatch").write_text(recipe)
        variables = {
            "PYTHONPATH": f"{ROOT}:{os.environ.get('PYTHONPATH', '')}",
            "PATH": f"{Path(sys.executable).parent}:{slurm.environment['PATH']}",
        }
        words = ("sbatch", "--parsable", "pool.sbatch", str(HERE / "bundle.yaml"))
        number = slurm.ask(*words, folder=work, **variables)
        print(f"Slurm job {number}: two nodes, one device each", flush=True)
        end = time.monotonic() + PATIENCE
        while not slurm.is_over(number):
            if time.monotonic() > end:
                sys.exit(f"not over within {PATIENCE:g} s:\n" + (work / f"pool-{number}.log").read_text())
            time.sleep(0.5)
        run = work / "runs" / f"pool-{number}"
        if not (run / "summary.json").exists():
            sys.exit((work / f"pool-{number}.log").read_text())
        summary = json.loads((run / "summary.json").read_text())
        for job, ended in summary["jobs"].items():
            print(f"{job}: {ended['verdict']}")
        print(f"{summary['figures']['met']} of {len(summary['jobs'])} targets met in time")
        with Journal.open(run / "journal.db", read_only=True) as journal:
            draw(journal, arguments.picture)
    print(f"the run: {arguments.picture}")


if __name__ == "__main__":
    main()
