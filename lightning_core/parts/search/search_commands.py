"""``lightning-core search``: a search for hyper-parameters in the pool that is up."""

from __future__ import annotations

import argparse
import json
import shlex
import sys
from collections.abc import Callable
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from lightning_core.bundle.problems import BundleError, require
from lightning_core.cli.arguments import add_allow_import, add_pool, new_file
from lightning_core.core.durations import format_duration
from lightning_core.pool import Pool
from lightning_core.scheduler.summary import EXIT_MET, EXIT_NOT_MET
from lightning_core.server.discovery import AUTO
from lightning_core.storage.atomic_files import write_whole
from lightning_core.view.text import clean

if TYPE_CHECKING:
    import optuna

    from lightning_core.parts.search.pool_search import Best, PoolSearch
    from lightning_core.parts.search.search_file import SearchSpec

STUDY = "study.db"
# Attribute of the study: the search as it was when it began.
SPEC = "lightning_core:search"


def add_commands(command: Callable[..., argparse.ArgumentParser]) -> None:
    """Add ``search``."""
    search = command("search", _search, "search hyper-parameters in a pool until a deadline", acts=True)
    search.add_argument("search", type=Path, metavar="SEARCH.yaml", help="job file with a section search")
    folder = "folder of the study; a search that is there continues (default: searches/NAME)"
    search.add_argument("--run-dir", type=Path, metavar="DIR", help=folder)
    storage = "Optuna storage for the study, such as sqlite:///FILE (default: study.db in that folder)"
    search.add_argument("--storage", metavar="URL", help=storage)
    search.add_argument("--json", type=new_file, metavar="FILE", help="also write the result to this file")
    add_allow_import(search)
    add_pool(search)


def _search(arguments: argparse.Namespace) -> int:
    require("optuna", extra="optuna")
    from lightning_core.parts.search.pool_search import PoolSearch, study_of
    from lightning_core.parts.search.search_file import SearchSpec

    with Pool.connect(arguments.pool) as pool:
        spec = SearchSpec.from_file(arguments.search, pool.as_existing(), arguments.allow_import)
        place = arguments.storage or (arguments.run_dir or Path("searches") / spec.name) / STUDY
        if isinstance(place, Path):
            place.parent.mkdir(parents=True, exist_ok=True)
        _quiet()
        study = study_of(spec, place)
        _check_same(study, spec, place)
        search = PoolSearch(
            pool, spec, study, connect=partial(Pool.connect, arguments.pool), on_news=partial(_say_best, spec)
        )
        known = len(study.get_trials(deepcopy=False)) if search.best else 0
        print(f"{spec.name}: importing torch and Lightning to check the configs ...", flush=True)
        search.check()
        _say_plan(spec, search, pool, known)
        jobs = None if pool.is_far else pool.folder / "jobs"  # asked now: it may be down at the end
        try:
            best = search.run()
        except KeyboardInterrupt:
            where = ["--run-dir", str(place.parent)] if isinstance(place, Path) else ["--storage", place]
            where += ["--pool", arguments.pool] if arguments.pool != AUTO else []
            where += [f"--allow-import={name}" for name in arguments.allow_import]
            again = shlex.join(["lightning-core", "search", str(arguments.search), *where])
            print(f"its trials wait in the pool; continue with: {again}", file=sys.stderr)
            raise
        if spec.worth is not None and (left := search.seconds_left) > 0:
            print(f"{format_duration(left)} before its deadline no further training is worth its time", flush=True)
        return _finish(spec, study, best, search.has_reached, jobs, place, arguments.json)


def _check_same(study: optuna.Study, spec: SearchSpec, place: Path | str) -> None:
    """Check that a study that exists is of this search.

    Raises:
        BundleError: If the search has been edited since.
    """
    now = json.loads(json.dumps([str(spec.space), spec.metric, spec.mode, spec.epochs, spec.template.config]))
    before = study.user_attrs.get(SPEC)
    if before is None:
        study.set_user_attr(SPEC, now)
    elif before != now:
        raise BundleError([
            f"{place} holds a search with another space, metric, number of epochs or config: trials of both would be "
            "compared; give a new --run-dir, or the search another name"
        ])  # fmt: skip


def _say_plan(spec: SearchSpec, search: PoolSearch, pool: Pool, known: int) -> None:
    more = f"; {known} trials so far" if known else ""
    if search.seconds_left <= 0:
        print(f"{spec.name}: its deadline was {search.end:%Y-%m-%d %H:%M}; a new search needs a --run-dir of its own",
              flush=True)  # fmt: skip
        return
    until = f"{search.end:%H:%M:%S}" if search.end.date() == datetime.now().date() else f"{search.end:%Y-%m-%d %H:%M}"
    at_once = f"{search.at_once} at once" if search.at_once > 1 else "one at a time"
    print(f"{spec.name}: trials of {spec.epochs} epochs, {at_once}, in {pool.describe()}, until {until}{more}",
          flush=True)  # fmt: skip


def _say_best(spec: SearchSpec, best: Best) -> None:
    after = f"{best.epoch} epoch{'s' * (best.epoch > 1)}"
    print(f"{datetime.now():%H:%M:%S}  {spec.metric} {best.value:.4g}  {best.job} after {after}", flush=True)


def _finish(
    spec: SearchSpec, study: optuna.Study, best: Best, reached: bool, jobs: Path | None, place: Path | str,
    json_file: Path | None,
) -> int:  # fmt: skip
    """Print and write the result."""
    from lightning_core.parts.search.pool_search import SECONDS

    trials = [trial for trial in study.get_trials(deepcopy=False) if trial.intermediate_values]
    whole = sum(max(trial.intermediate_values) + 1 >= spec.epochs for trial in trials)
    took = sum(float(trial.user_attrs.get(SECONDS, 0.0)) for trial in trials)
    model = "" if jobs is None else str(jobs / best.job / "best.ckpt")
    print(f"{len(trials)} trial{'s' * (len(trials) > 1)}, {whole} to the end, {format_duration(took)} of training")
    print(
        f"best {spec.metric}: {best.value:.6g}, of {best.job}"
        + ("" if reached else f"; {spec.target:g} was not reached")
    )
    for name, value in best.params.items():
        print(f"  {clean(name)}: {clean(str(value))}")
    if model:
        print(f"its model: {model}")
    print(f"study: {place}")
    if json_file:
        found = {"metric": spec.metric, "value": best.value, "job": best.job, "params": dict(best.params),
                 "model": model, "reached": reached, "trials": len(trials), "whole": whole}  # fmt: skip
        write_whole(json_file, json.dumps(found, indent=1))
    return EXIT_MET if reached else EXIT_NOT_MET


def _quiet() -> None:
    import optuna

    optuna.logging.set_verbosity(optuna.logging.WARNING)
