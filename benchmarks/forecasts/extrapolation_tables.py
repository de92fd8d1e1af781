"""Tables and figures of the comparison of estimators."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from benchmarks.common import Figures, table
from benchmarks.curves.bundles import Recording
from benchmarks.forecasts.scores import AHEAD, CAP, DROP, KINDS, PARTS, Score, Study, nearer, over


def show(studies: Mapping[str, Study], pool: Sequence[Recording]) -> None:
    """Print all scores, by part shown."""
    parts, asked = [*map(percent, PARTS)], [*map(percent, PARTS[1:]), "all"]
    for kind in KINDS:
        print(f"\nRelative error of the loss at cell {AHEAD}, {kind} recordings: median (mean), by part shown")
        table(["", *parts], [
            [name, *(f"{over(np.median, e):.3g} ({over(np.mean, e):.2g})" for e in one.errors[kind])]
            for name, one in studies.items()
        ])  # fmt: skip
    show_nearer(studies, "weighted", pool)
    said = {name: [brief(one.scores["mixed", part]) for part in (*PARTS[1:], 0)] for name, one in studies.items()}
    titles = ("Work left, median |ln(forecast / truth)|", "% of truths at or below q10/q50/q90",
              f"% wrongly dropped/wrongly kept/kept though never reached, at a chance below {DROP}",
              "The same, decided on the median",
              )  # fmt: skip
    for k, title in enumerate(titles):
        print(f"\n{title}, mixed recordings, by part shown")
        table(["", *asked], [[name, *(brief[k] for brief in row)] for name, row in said.items()])
    for kind in KINDS:
        print(f"\nData needed, |forecast - truth| / truth, {kind} recordings: median (mean, each at most {CAP:g})")
        table(["", *asked], [
            [name, *(f"{s.data:.2f} ({s.data_mean:.2f})" for s in (one.scores[kind, p] for p in (*PARTS[1:], 0)))]
            for name, one in studies.items()
        ])  # fmt: skip


def show_nearer(studies: Mapping[str, Study], base: str, pool: Sequence[Recording]) -> None:
    """Print how often the others are nearer to the future loss than the one called ``base``."""
    errors = studies[base].errors["mixed"]
    print(f"\nNearer to the loss at cell {AHEAD} than {base}: % of mixed recordings (families, by the median)")
    table(["", *map(percent, PARTS)], [
        [name, *(f"{share:.0%} ({wins} of {of})" for share, wins, of in nearer(one.errors["mixed"], errors, pool))]
        for name, one in studies.items() if name != base
    ] + [["recordings", *(~np.isnan(errors)).sum(axis=1).tolist()]])  # fmt: skip


def percent(part: float) -> str:
    return f"{part:.0%}"


def brief(s: Score) -> list[str]:
    triples = ((s.q10, s.q50, s.q90), (s.drop, s.keep, s.never), (s.point_drop, s.point_keep, s.point_never))
    return [f"{s.work:.2f}", *("/".join(f"{100 * share:.0f}" for share in triple) for triple in triples)]


def figures_of(studies: Mapping[str, Study]) -> Figures:
    """Return numbers by names such as ``dkf_error_pure_5``; None without a question, or if the median is infinite."""
    numbers: dict[str, float] = {}
    for name, one in studies.items():
        for kind, errors in one.errors.items():
            for part, some in zip(PARTS, errors, strict=True):
                numbers[f"{name}_error_{kind}_{100 * part:g}"] = over(np.median, some)
                numbers[f"{name}_mean_error_{kind}_{100 * part:g}"] = over(np.mean, some)
            numbers[f"{name}_data_{kind}"] = one.scores[kind, 0].data
        for part in PARTS[1:]:
            numbers[f"{name}_work_{100 * part:g}"] = one.scores["mixed", part].work
            numbers[f"{name}_q90_{100 * part:g}"] = one.scores["mixed", part].q90
        numbers |= {f"{name}_{what}": number for what, number in one.scores["mixed", 0]._asdict().items()}
    return {name: number if np.isfinite(number) else None for name, number in numbers.items()}
