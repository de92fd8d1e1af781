"""Measure how close to its deadline a training ends under ``decor``, compared with the tables of DECOR-NN.

Three small models. Each is first trained with all resources, which gives its minimum training time. Its deadline is
then 1.0, 1.5 or 1.8 times as long (the paper's coefficient d_c); in some runs it is cut to 80 % when 30 % of the
batches are done. Runs have parts of a CPU, limited by the kernel, or one or two devices. Devices are logical: on two
hardware threads of one core, two workers that compute do 1.2 times the work of one, and no deadline lies between. So
each batch waits, as if for an accelerator. The time of a run is from its submission until the scheduler knows that all
batches are done.

d_c 1.0 is reported separately: it measures the machine, on which equal work varies by some per cent between runs.

``--tables`` plays every cell of the paper's tables in virtual time, under ``decor`` as printed and as it is by default
(:mod:`benchmarks.policies.decor_tables`).
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from benchmarks.common import Figures, Size, main, table
from benchmarks.live.decor_runs import Bench, Run, Setting
from benchmarks.papers.decor_nn import PRINTED
from benchmarks.policies.decor_tables import play_tables


def _settings(kind: str, size: Size, models: Sequence[str]) -> Iterator[tuple[Setting, int]]:
    """Yield the settings and their numbers of runs."""
    times = {"quick": 1, "default": 1, "full": 3}[size]
    for model in models:
        if size == "quick":
            yield Setting(kind, model, 1.5), 1
            continue
        if size == "full":
            yield Setting(kind, model, 1.0), times
        for tightness in (1.5, 1.8):
            yield Setting(kind, model, tightness), times
            yield Setting(kind, model, tightness, changed=True), times
        yield Setting(kind, model, 1.5, alpha=0.95), times
        if kind == "cpu":
            yield Setting(kind, model, 1.5, neighbour=True), times


def measure(
    size: Size, plots: Path | None = None, tables: bool = False, cpu: bool = False, devices: bool = False
) -> Figures:
    """Run all settings of a size, or play the paper's tables; print them and return the figures."""
    if tables:
        return play_tables()
    wanted = {"cpu": cpu or not devices, "devices": devices or (not cpu and size != "quick")}
    kinds = [kind for kind, chosen in wanted.items() if chosen]
    models = ("convolutions",) if size == "quick" else ("perceptron", "convolutions", "transformer")
    seconds = 10.0 if size == "quick" else 40.0
    runs: list[Run] = []
    with tempfile.TemporaryDirectory() as temp:
        for kind in kinds:
            bench = Bench(kind, Path(temp))
            with bench.cluster:
                for model in models:
                    fastest = bench.fastest(model, seconds, 1 if size == "quick" else 3)
                    print(f"{kind}, {model}: {bench.batches[model]} batches in {fastest:.2f} s at full speed",
                          flush=True)  # fmt: skip
                    for setting, times in _settings(kind, size, (model,)):
                        for _ in range(times):
                            runs.append(bench.run(setting, fastest))
                            _print_run(runs[-1])
    _tables(runs)
    if plots is not None:
        from benchmarks.live.decor_plots import courses  # with matplotlib

        courses(runs, plots)
    return _figures(runs)


def _print_run(run: Run) -> None:
    setting = run.setting
    words = [f"d_c {setting.tightness}", f"alpha {setting.alpha}"]
    words += ["deadline cut"] * setting.changed + ["another process on half a core"] * setting.neighbour
    print(f"  {', '.join(words)}: ended {run.error:+.2f} % from {run.deadline:.1f} s; granted {run.granted:.2f}, used "
          f"{run.used:.2f}, {run.resizes} resizes", flush=True)  # fmt: skip


def _tables(runs: Sequence[Run]) -> None:
    rows = []
    for setting in dict.fromkeys(run.setting for run in runs):
        some = [run for run in runs if run.setting == setting]
        errors = [run.error for run in some]
        theirs = [
            cell.error
            for cell in PRINTED
            if (cell.kind == "cpu", cell.tightness, cell.changed)
            == (setting.kind == "cpu", setting.tightness, setting.changed)
        ]
        plain = setting.alpha == 1.0 and not setting.neighbour
        rows.append([
            setting.kind, setting.model, setting.tightness, setting.alpha,
            "cut" if setting.changed else "neighbour" if setting.neighbour else "",
            float(np.mean([run.granted for run in some])), float(np.mean([run.used for run in some])),
            float(np.mean(np.abs(errors))), min(errors), max(errors),
            float(np.mean(theirs)) if theirs and plain else "",
        ])  # fmt: skip
    table(
        ["kind", "model", "d_c", "alpha", "", "granted", "used", "mean |error| %", "min", "max", "paper's mean"], rows
    )


def _mean_abs(runs: Sequence[Run]) -> float | None:
    return float(np.mean([abs(run.error) for run in runs])) if runs else None


def _figures(runs: Sequence[Run]) -> Figures:
    def some(kind: str, changed: bool, neighbour: bool = False, tight: bool = False) -> list[Run]:
        return [
            run for run in runs
            if run.setting.kind == kind and run.setting.alpha == 1.0 and run.setting.changed == changed
            and run.setting.neighbour == neighbour and (run.setting.tightness == 1.0) == tight
        ]  # fmt: skip

    careful = [run for run in runs if run.setting.alpha < 1.0]
    return {
        "mean_abs_eps_relaxed": _mean_abs(some("cpu", changed=False)),
        "mean_abs_eps_changed": _mean_abs(some("cpu", changed=True)),
        "late_runs": float(sum(run.error > 0 for run in careful)) if careful else None,
        "mean_abs_eps_relaxed_devices": _mean_abs(some("devices", changed=False)),
        "mean_abs_eps_changed_devices": _mean_abs(some("devices", changed=True)),
        "mean_abs_eps_neighbour": _mean_abs(some("cpu", changed=False, neighbour=True)),
        "mean_abs_eps_tight": _mean_abs(some("cpu", changed=False, tight=True)),
        "runs": float(len(runs)),
    }


if __name__ == "__main__":
    began = time.monotonic()
    flags = {
        "tables": "play each cell of the paper's tables in virtual time instead, a few minutes",
        "cpu": "only the runs on parts of a CPU: an hour of --full's two",
        "devices": "only the runs on one or two logical devices: the other hour",
    }
    main("live.decor", __doc__.splitlines()[0], measure, flags, plots=None)
    print(f"took {time.monotonic() - began:.0f} s")
