"""Trains one incarnation of a job in a worker, from the last checkpoint to its end."""

from __future__ import annotations

import logging
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from lightning_core.core.events import ExitCause, WorkerExited
from lightning_core.storage.atomic_files import replace_link
from lightning_core.storage.job_checkpoints import checkpoint_folder, find, newest_written
from lightning_core.worker.assignment import Assignment
from lightning_core.worker.exit_causes import cause_of, origin, story
from lightning_core.worker.process_group import trainer_arguments

if TYPE_CHECKING:
    from lightning_core.callbacks import CoreCallback
log = logging.getLogger(__name__)

CHECKPOINT = "last.ckpt"


def fit(assignment: Assignment, callback: CoreCallback) -> WorkerExited:
    """Build a job and train it from its last checkpoint.

    Args:
        assignment: The job and its incarnation.
        callback: Callback that joins the Trainer to the scheduler.

    Returns:
        How the training ended.
    """
    from lightning_core.agent.steering.fit_signals import JobEnded, JobFenced, JobReleased
    from lightning_core.bundle.lightning_config import build
    from lightning_core.bundle.strategies import strategy_of, without_strategy
    from lightning_core.callbacks.checkpointing.job_writer import write
    from lightning_core.callbacks.checkpointing.shards import CheckpointNotSavedError
    from lightning_core.callbacks.fit_end import limit_of
    from lightning_core.callbacks.logger_runs import call_it_a_success

    rank, home = assignment.rank, Path(assignment.folder)
    folder = checkpoint_folder(home, assignment.incarnation)
    folder.mkdir(parents=True, exist_ok=True)
    left = WorkerExited(assignment.job, assignment.incarnation)
    building, fenced = True, False
    try:
        ranks = trainer_arguments(rank, assignment.kind, strategy_of(assignment.config))
        cli = build(without_strategy(assignment.config), assignment.kind, home, callback, ranks)
        building = False
        found = find(folder)  # only checkpoints that the pool manager has put there
        start = assignment.config.get("ckpt_path") if found is None else str(found.path)
        try:
            cli.trainer.fit(cli.model, datamodule=cli.datamodule, ckpt_path=start)
        except JobReleased:
            call_it_a_success(cli.trainer)
            return replace(left, cause=ExitCause.RELEASED, checkpoint=callback.last_checkpoint)
        except JobFenced as reason:  # nothing is saved, and nothing waits for its report
            fenced = True
            return replace(left, cause=ExitCause.LOST, detail=str(reason))
        except JobEnded:
            call_it_a_success(cli.trainer)
        else:
            left = replace(left, detail=limit_of(cli.trainer, assignment.job))
        try:
            left = replace(left, checkpoint=write(cli.trainer, folder / CHECKPOINT))
        except CheckpointNotSavedError as error:  # the training has ended all the same
            log.warning("%s: its last checkpoint could not be written: %s", assignment.job, error)
    except (Exception, SystemExit, KeyboardInterrupt) as error:  # the user's classes may raise anything
        cause = cause_of(error, building=building)
        return replace(left, cause=cause, detail=story(origin(error) if building else error, rank.number, rank.of))
    finally:
        if rank.number == 0 and not fenced:
            _link(home / CHECKPOINT, folder)
    return left


def _link(link: Path, folder: Path) -> None:
    """Point a link in the job's folder to its last checkpoint, a file or a folder, whichever incarnation wrote it."""
    try:
        if (written := newest_written(folder)) is not None:
            replace_link(link, written.path.relative_to(link.parent))
    except OSError as error:
        log.warning("%s does not point to the last checkpoint: %s", link, error)
