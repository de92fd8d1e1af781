"""The section of the results that holds the bundles that were trained live, beside the same ones in virtual time."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks.papers.markdown import head, row, wrapped
from benchmarks.papers.record import Record

HEADING = "Trained live: bundles in the kind of the papers' tables, and what people do without a pool"
INTRODUCTION = (
    "Real models (images, text, speech, reinforcement learning) with targets and deadlines that are drawn by the "
    "rules of LARA and LaiRA, by turns of the seeds; a device is a core. *All at once* and *one after another* are "
    "processes that nothing manages. The other rows are policies in a pool, without settings of their own. *Met* is "
    "the mean of the seeds, with its standard error, of the bound that a clairvoyant scheduler could not pass; "
    "*simulated* is the same bundles in virtual time at the throughputs of this machine, the mean of six drifts by "
    "10 %. *Pace* is the throughput in a bundle relative to that measured just before it, where it was recorded; those "
    "bundles are simulated at their own pace. *Way* is how far a job had come from its first loss to its target by its "
    "deadline, in the mean; *lost* the part of the device time that went to jobs that missed; *starts* how often a job "
    "was given a device. In brackets: simulated. *Fresh* is what is met in 100 more bundles, which are simulated only. "
    "Building is simulated as it was measured."
)
TITLES = {
    "five": "five models, one device", "ten": "ten models, one device", "five_on_two": "five models, two devices",
    "ten_on_two": "ten models, two devices",
}  # fmt: skip
COLUMNS = (
    "row", "seeds", "met", "simulated", "live less simulated", "triage ahead by", "way", "lost", "starts", "pace",
    "fresh", "fresh: triage ahead by",
)  # fmt: skip


def tables_section(runs: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the lines of the section; none if its figures were never measured."""
    record = Record(runs)
    found = [title for title in TITLES if record.known("paper_tables", [f"{title}_triage_met"])]
    if not found:
        return []
    lines, apart = ["", f"## {HEADING}", "", *wrapped(INTRODUCTION)], list[float]()
    for name in found:
        run = record.run("paper_tables", f"{name}_triage_met")
        figures = run["figures"]
        start, end = f"{name}_", "_met"
        longer = tuple(f"{one}_" for one in TITLES if one.startswith(start))
        rows = [key[len(start) : -len(end)] for key in figures
                if key.startswith(start) and key.endswith(end) and not key.startswith(longer)]  # fmt: skip
        lines += ["", *wrapped(f"{TITLES[name].capitalize()}, `{run['command']}`, {run['day']}:"), "", *head(COLUMNS)]
        rows = [one for one in rows if not one.endswith(("_simulated", "_fresh"))]
        lines += [_row(figures, f"{name}_{one}", one) for one in rows]
        apart += [_in_errors(figures, f"{name}_{one}_live_minus_simulated") for one in rows]
    one, two = (sum(errors <= bound for errors in apart) for bound in (1, 2))
    told = (
        f"Of these {len(apart)} differences of live and simulated, {one} are within one standard error, and {two} "
        f"within two."
    )
    return [*lines, "", *wrapped(told)]


def _in_errors(figures: Mapping[str, float], key: str) -> float:
    """Return the size of a difference in standard errors."""
    if not figures[key]:
        return 0.0
    return abs(figures[key]) / (figures[f"{key}_se"] or math.nan)


def _row(figures: Mapping[str, float], key: str, name: str) -> str:
    def of(what: str) -> float:
        return figures[f"{key}_{what}"]

    def ahead(what: str) -> str:
        return f"{of(what):+.2f} ± {of(f'{what}_se'):.2f}" if f"{key}_{what}" in figures else ""

    starts = f"{of('starts'):.1f} ({of('simulated_starts'):.1f})" if of("starts") else ""
    pace, fresh = (f"{of(what):.2f}" if f"{key}_{what}" in figures else "" for what in ("pace", "fresh_met"))
    return row([
        name.replace("_", " "), f"{of('seeds'):.0f}", f"{of('met'):.2f} ± {of('met_se'):.2f} of {of('ceiling'):.2f}",
        f"{of('simulated_met'):.2f}", f"{of('live_minus_simulated'):+.2f} ± {of('live_minus_simulated_se'):.2f}",
        ahead("ours_ahead"),
        f"{of('way'):.2f} ({of('simulated_way'):.2f})", f"{of('wasted'):.2f} ({of('simulated_wasted'):.2f})", starts,
        pace, fresh, ahead("fresh_ahead"),
    ])  # fmt: skip
