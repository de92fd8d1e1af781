"""The section of the results that holds the papers against what was measured; DECOR-NN has a section of its own."""

from __future__ import annotations

from collections.abc import Sequence

from benchmarks.papers import on_estimators, on_markets, on_placement, on_policies
from benchmarks.papers.finding import Finding
from benchmarks.papers.inventory import INVENTORY
from benchmarks.papers.markdown import head, row, wrapped
from benchmarks.papers.on_estimators import PARTS
from benchmarks.papers.printed import AT_DEFAULTS, PAPERS, PRINTED, PRINTED_ROWS, SLICES_TOO
from benchmarks.papers.record import Record, Run

HEADING = "What the papers say, and what was measured"
INTRODUCTION = (
    "LARA is of Wang, Yu, Zhao and Zhou (ICML 2024), LaiRA of Wang, Liu and Zhou (2025). Their bundles cannot be "
    "repeated: data, models and thresholds are not all published. Here their methods are run on the published curves. "
    "*Spot* is the paper on fine-tuning with [spot and on-demand nodes](parts/spot.md), *edge and cloud* that of "
    "Sartzetakis et al. (see [its part](parts/edge-and-cloud.md)). *Pure* is one domain, *mixed* all; *the ceiling* is "
    "what a clairvoyant scheduler meets; *as printed* is the "
    "papers' formula where the default here is "
    "[another reading](policies.md#the-papers-policies-and-how-they-are-read). The verdicts are worked out from the "
    "figures."
)
# Rows of the table of errors, by the names of their figures.
AHEAD = {
    "least_squares": "LS",
    "weighted": "WLS",
    "kalman": "KF",
    "dkf_undamped": "DKF as printed",
    "dkf": "DKF as read here, damped",
    "log_time": "`log_time`",
    "posterior": "`posterior`",
}
COMPARED = {
    "least_squares": "LS",
    "weighted": "WLS",
    "m4": "M4",
    "engression": "Engression, of losses",
    "engression_of_logs": "Engression, of logarithms",
    "posterior": "`posterior`",
}
CELLS = {"pure_5": "pure, 5 jobs", "pure_10": "pure, 10 jobs", "mixed_10": "mixed, 10 jobs"}
ABLATED = ("mixed_10", "pure_10", "mixed_25", "pure_25")
ABLATIONS = {"whole": "whole", "ucb": "without UCB", "pd": "without PD", "dkf": "without DKF (STA)"}
OURS = "triage"
EVENING = {"fifo": "FIFO", "edf": "STF", "lrf": "LRF", "lara": "LARA", "laira": "LaiRA", "triage": OURS}
# Figures without which there is no section: one of each command that it quotes.
NEEDED = (
    ("extrapolation", ("dkf_undamped_error_mixed_1", "lara_engression_of_logs_s")),
    ("core", ("papers_bundles", "ablation_ucb_10_worth", on_policies.FIRST)),
    ("evening", ("met_file_fifo",)),
)
# One of each command of the findings on appendices.
APPENDICES = ("swept_bundles", "watched_bundles", "lara_ms_100")


def section(runs: Sequence[Run]) -> list[str]:
    """Return the lines of the section; none if a figure of it was never measured."""
    record = Record(runs)
    if not all(record.known(benchmark, figures) for benchmark, figures in NEEDED):
        return []
    found = findings(record)
    return [
        "", f"## {HEADING}", "", *wrapped(INTRODUCTION), "",
        *head(["the paper says", "where", "measured", "verdict"]),
        *(row([one.says, one.where, one.measured, one.verdict]) for one in found),
        *_losses_ahead(record), *_data_needed(record), *_jobs_met(record), *_constants(record),
        *_ablations(record), *_first_come(record), *_markets(record), *_inventory(record),
    ]  # fmt: skip


def findings(record: Record) -> list[Finding]:
    """Return all findings; of a command that was not run there are none."""
    found = [*on_estimators.findings(record), *on_policies.findings(record)]
    if record.known("core", APPENDICES):
        found += on_policies.in_appendices(record)
    for paper in (on_markets, on_placement):
        if paper.is_known(record):
            found += paper.findings(record)
    return found


def _markets(record: Record) -> list[str]:
    lines = []
    if on_markets.is_known(record):
        lines += on_markets.tables(record, _of(record, "spot", "fig10_4_best"))
    if on_placement.is_known(record):
        lines += on_placement.tables(record, _of(record, "placement", "equal_cost_plan_as_published"))
    return lines


def _inventory(record: Record) -> list[str]:
    rows = []
    for one in INVENTORY:
        command = ""
        if one.source and record.known(one.source[0], [one.source[1]]):
            command = _of(record, *one.source)
        rows.append([one.paper, one.number, one.shows, one.here, command])
    return [
        "", "### Figures and tables of the papers", "",
        *wrapped("*Above* is the table of what the papers say, with the tables after it."), "",
        *head(["paper", "figure or table", "shows", "beside ours", "command, size, day"]), *map(row, rows),
    ]  # fmt: skip


def _losses_ahead(record: Record) -> list[str]:
    cases = [(kind, part) for kind in ("pure", "mixed") for part in PARTS]
    rows = [
        [title, *(f"{record('extrapolation', f'{name}_error_{kind}_{part}'):.2f}" for kind, part in cases)]
        for name, title in AHEAD.items()
    ]
    return [
        "", "### Loss ahead", "",
        *wrapped("Median relative error of the loss at the 500th cell, by the part seen, "
                 f"{_of(record, 'extrapolation', 'dkf_error_mixed_1')}:"), "",
        *head(["estimator", *(f"{kind}, {part} %" for kind, part in cases)]), *map(row, rows),
    ]  # fmt: skip


def _data_needed(record: Record) -> list[str]:
    rows = []
    for name, title in COMPARED.items():
        figures = [f"data_{kind}" for kind in ("pure", "mixed")] + [f"data_mean_{kind}" for kind in ("pure", "mixed")]
        figures.append("error_mixed_10")
        numbers = [record("extrapolation", f"lara_{name}_{figure}") for figure in figures]
        taken = 1e3 * record("extrapolation", f"lara_{name}_s")
        rows.append([title, *(f"{number:.2f}" for number in numbers), f"{taken:.3g}"])
    columns = ["pure, median", "mixed, median", "pure, mean", "mixed, mean"]
    return [
        "", "### Data needed", "",
        *wrapped(
            "LARA's measure, |forecast - truth| / truth, with 2 to 50 % seen of "
            f"{record('extrapolation', 'lara_recordings'):.0f} recordings and no error counted above 10, "
            f"{_of(record, 'extrapolation', 'lara_engression_s')}. Engression has its package's defaults, as in LARA, "
            "which does not say to what it was fitted. Fitted to the losses it falls too fast: a forecast of the data "
            "needed that comes too early is wrong by 1 at most, and the loss ahead is far off."
        ), "",
        *head(["estimator", *columns, "error of the loss ahead, mixed, 10 % seen", "ms a forecast"]), *map(row, rows),
    ]  # fmt: skip


def _jobs_met(record: Record) -> list[str]:
    columns, printed = [], {}
    for cell, title in CELLS.items():
        printed[cell] = [one for one in PRINTED if f"{one.kind}_{one.jobs}" == cell]
        columns += [f"printed: {one.paper}, {one.where}" for one in printed[cell]]
        columns.append(f"here: {title}, ceiling {record('core', f'papers_{cell}_ceiling'):.2f}")
    rows = []
    for name, reading in [pair for policy in PAPERS for pair in _readings(policy)] + [(OURS, OURS)]:
        cells = [name]
        for cell in CELLS:
            cells += [str(one.met.get(reading, "")) for one in printed[cell]]
            met, doubt, part = (
                record("core", f"papers_{cell}_{what}_{_row_of(name)}") for what in ("met", "se", "fraction")
            )
            cells.append(f"{met:.2f} ± {doubt:.2f} ({part:.2f})")
        rows.append(cells)
    changes = [
        f"{printed} {record('core', f'papers_change_{printed}'):+.3f} ± "
        f"{record('core', f'papers_change_se_{printed}'):.3f}"
        for printed in PRINTED_ROWS.values()
    ]
    return [
        "", "### Jobs met", "",
        *wrapped(
            "What the text of the papers prints of their bundles, and what is met here: mean ± standard error over "
            f"{record('core', 'papers_bundles'):.0f} bundles (part of the ceiling), "
            f"{_of(record, 'core', 'papers_bundles')}. LaiRA prints no number of its own for figure 2(a), only that it "
            "is best. As printed rather than as read here, by pairs of bundles and as parts of the ceiling: "
            f"{', '.join(changes)}. RR, LRF and ETF have tuned constants; LARA, LaiRA and ours were tuned too, and "
            "kept their defaults."
        ), "",
        *head(["policy", *columns]), *map(row, rows),
    ]  # fmt: skip


def _constants(record: Record) -> list[str]:
    if not record.known("core", ["constants_bundles"]):
        return []
    pairs = [*AT_DEFAULTS.items(), (PRINTED_ROWS["LaiRA"], SLICES_TOO)]
    rows = [
        [name, *(f"{record('core', f'constants_{cell}_fraction_{name}'):.2f}" for cell in CELLS)]
        for pair in pairs
        for name in pair
    ]
    return [
        "", "### Tuned and not, printed slices and not", "",
        *wrapped(
            "Part of the ceiling met by RR, LRF and ETF with the tuned constants that they have in all tables "
            "(`benchmarks/policies/tuned.json`) and at the defaults that users get, over "
            f"{record('core', 'constants_bundles'):.0f} bundles, {_of(record, 'core', 'constants_bundles')}. Nothing "
            "that was tried for LARA and LaiRA was better than their defaults by two standard errors. LaiRA's law "
            "of slices is printed with a plus, without a cap and without gains: here the gains of the default are "
            "added instead of subtracted. Its exploration, whose length the paper does not print, is ours in all "
            "rows."
        ), "",
        *head(["policy", *CELLS.values()]), *map(row, rows),
    ]  # fmt: skip


def _readings(policy: str) -> list[tuple[str, str]]:
    """Return the rows of a policy, each with the name under which the papers print its number."""
    if policy not in on_policies.BASELINES:
        return [(policy, policy)]
    return [(PRINTED_ROWS[policy], policy), (f"{policy} as read here", "")]


def _row_of(name: str) -> str:
    return name.removesuffix(" as read here")


def _ablations(record: Record) -> list[str]:
    rows = []
    for part, title in ABLATIONS.items():
        numbers = [
            [record("core", f"ablation_{part}_{cell}_{what}") for what in ("fraction", "switches")] for cell in ABLATED
        ]
        rows.append([title, *(f"{met:.2f}; {switches:.2f}" for met, switches in numbers)])
    columns = [", ".join(cell.split("_")) + " jobs" for cell in ABLATED]
    return [
        "", "### LaiRA without its parts", "",
        *wrapped("Part of the ceiling met, and switches per job, with 12 bundles a column, "
                 f"{_of(record, 'core', 'ablation_ucb_10_worth')}:"), "",
        *head(["LaiRA", *columns]), *map(row, rows),
    ]  # fmt: skip


def _first_come(record: Record) -> list[str]:
    rows = []
    for order, title in (("file", "`examples/evening.yaml`, in its order"), ("random", "... in a random order")):
        ceiling = record("evening", f"ceiling_{order}")
        rows.append([title, *(f"{record('evening', f'met_{order}_{name}') / ceiling:.2f}" for name in EVENING)])
    for cell, title in CELLS.items():
        parts = [record("core", f"papers_{cell}_fraction_{name}") for name in EVENING.values()]
        rows.append([f"recorded bundles, {title}", *(f"{part:.2f}" for part in parts)])
    return [
        "", "### First come, first served beside the others", "",
        *wrapped("Part of the jobs met that can be met: the example's evening, "
                 f"{_of(record, 'evening', 'met_file_fifo')}, and the bundles above."), "",
        *head(["jobs", *EVENING.values()]), *map(row, rows),
    ]  # fmt: skip


def _of(record: Record, benchmark: str, figure: str) -> str:
    run = record.run(benchmark, figure)
    return f"`{run['command']}`, {run['size']}, {run['day']}"
