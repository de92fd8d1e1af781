"""What the papers say of policies, beside our figures."""

from __future__ import annotations

from collections.abc import Sequence

from benchmarks.papers.finding import NO, YES, Finding, listed, verdict
from benchmarks.papers.printed import JOBS_SWEPT, PRINTED_ROWS, SWEEPS, figure_of
from benchmarks.papers.record import Record

BASELINES = {"LARA": ("UA", "STF", "LRF", "ETF"), "LaiRA": ("UA", "STF", "LARA", "STA", "RR", "SH")}
# Numbers of jobs at which the ablations are measured.
ABLATED = (10, 25)
JOBS = (5, 10, 25, 50, 100)
# What is said of each constant, and whether it is said that its lowest and its highest value lose jobs; and the part of
# the ceiling that counts as a loss.
CONSTANTS = {
    "lara_explore": ("Too small or too large an exploration threshold loses jobs; 4,000 to 6,000 are right",
                     (True, True)),
    "lara_gamma": ("A discount factor close to 1, or to 0.5, loses jobs", (True, True)),
    "laira_delta": ("Extreme step sizes lose jobs; within a range results are stable", (True, True)),
    "laira_gamma": ("A large discount factor loses jobs; a small one does not", (False, True)),
}  # fmt: skip
DECLINE = 0.05
# Bundles on which LaiRA is watched.
WATCHED = {"pure_10": "pure, 10 jobs", "mixed_10": "mixed, 10 jobs"}
# Names of figures that are recorded as text.
MET = "{} as published: part of the ceiling met with 5; 10; 25; 50; 100 jobs (bundles of all domains, of one domain)"
SWITCHES = "{} as published: switches per job"
FIRST = "shortest first: part of the ceiling met with 5; 10; 25; 50; 100 jobs (bundles of all domains, of one domain)"


def findings(record: Record) -> list[Finding]:
    """Return all findings.

    Raises:
        MissingFigureError: If a figure was not measured.
    """
    slices = "Removing the adaptive time slices (PD) does not reduce the jobs met"
    return [
        _best(record, "LARA", "LARA, 4.1 and 4.2, fig. 4", ("pure_5", "mixed_10")),
        _best(record, "LaiRA", "LaiRA, fig. 2", ("pure_10", "mixed_10")),
        _scales(record, "LARA", "LARA, 4.3, fig. 6(a)"),
        _scales(record, "LaiRA", "LaiRA, fig. 4(a)"),
        _fewer_switches(record),
        _helps(record, "ucb", "Removing UCB reduces the jobs met"),
        _helps(record, "dkf", "Removing the feasibility check by DKF reduces the jobs met"),
        _helps(record, "pd", slices, expected=False),
        _steadies(record),
        _first_come(record),
    ]


def in_appendices(record: Record) -> list[Finding]:
    """Return the findings on figures of the appendices, and on LARA's figure 6(b).

    Raises:
        MissingFigureError: If a figure was not measured.
    """
    return [
        _round(record),
        *_constants(record),
        _finds_infeasible(record, "whole", "as read here"),
        _finds_infeasible(record, "printed", "with eq. 8 as printed"),
        _first_is_steady(record),
        _scores_without_ucb(record),
    ]


def _best(record: Record, policy: str, where: str, cells: Sequence[str]) -> Finding:
    told, holds = [], []
    others = BASELINES[policy]
    for cell in cells:
        met = {
            name: record("core", f"papers_{cell}_fraction_{name}") for name in (policy, PRINTED_ROWS[policy], *others)
        }
        best = max(others, key=lambda name: met[name])
        words = PRINTED_ROWS[policy].removeprefix(policy).replace(",", " with").strip()
        printed = met[PRINTED_ROWS[policy]]
        told.append(f"{_jobs(cell)}: {printed:.2f} {words}, {met[policy]:.2f} as read here, {best} {met[best]:.2f}")
        holds.append(max(printed, met[policy]) > met[best])
    measured = f"part of the ceiling met, and by the best of the others; {'; '.join(told)}"
    said = verdict(holds, [f"for {_jobs(cell)}" for cell in cells])
    return Finding(f"{policy} meets more than {listed(others)}", where, measured, said)


def _jobs(cell: str) -> str:
    kind, jobs = cell.split("_")
    return f"{kind}, {jobs} jobs"


def _scales(record: Record, policy: str, where: str) -> Finding:
    mine, first = (record.numbers("core", name)[::2] for name in (MET.format(policy.lower()), FIRST))
    pairs = list(zip(JOBS, mine, first, strict=True))[1:]
    told = ", ".join(f"{jobs}: {one:.2f} ({other:.2f})" for jobs, one, other in pairs)
    said = verdict([one > other for _, one, other in pairs], [f"with {jobs} jobs" for jobs, *_ in pairs])
    says = f"{policy} consistently outperforms the others, STF among them, as the number of jobs grows"
    measured = f"part of the ceiling met, mixed, and by STF, by the number of jobs: {told}"
    return Finding(says, where, measured, said)


def _fewer_switches(record: Record) -> Finding:
    lara, laira = (record.numbers("core", SWITCHES.format(name)) for name in ("lara", "laira"))
    measured = f"per job, with 5 to 100 jobs: LaiRA {laira[0]:g} to {laira[1]:g}, LARA {lara[0]:g} to {lara[1]:g}"
    says = "LaiRA needs significantly fewer switches than LARA"
    return Finding(says, "LaiRA, fig. 4(b)", measured, YES if laira[1] < lara[0] else NO)


def _helps(record: Record, part: str, says: str, *, expected: bool = True) -> Finding:
    worth = [[record("core", f"ablation_{part}_{jobs}_worth{end}") for end in ("", "_se")] for jobs in ABLATED]
    told = ", ".join(
        f"{more:+.3f} ± {doubt:.3f} with {n} jobs" for n, (more, doubt) in zip(ABLATED, worth, strict=True)
    )
    sure = [more > 2 * doubt for more, doubt in worth]
    if not expected:
        said = verdict([not one for one in sure], [f"with {jobs} jobs" for jobs in ABLATED])
    elif any(sure):
        said = verdict(sure, [f"with {jobs} jobs" for jobs in ABLATED])
    else:
        said = f"{NO}: no effect above two standard errors"
    return Finding(says, "LaiRA, fig. 5(a)", f"it is worth {told}, of the ceiling", said)


def _steadies(record: Record) -> Finding:
    names = {"ucb": "UCB", "pd": "PD", "dkf": "DKF"}
    whole = record("core", "ablation_whole_switches")
    without = {part: record("core", f"ablation_{part}_switches") for part in names}
    told = ", ".join(f"without {names[part]} {switches:.2f}" for part, switches in without.items())
    said = verdict(
        [switches > 1.05 * whole for switches in without.values()], [f"for {name}" for name in names.values()]
    )
    says = "Removing UCB, PD or DKF increases the number of switches"
    return Finding(says, "LaiRA, fig. 5(b)", f"switches per job: {whole:.2f} with all; {told}", said)


def _constants(record: Record) -> list[Finding]:
    """Return what is said of one constant at a time: how much worse the ends are than the best of the rest."""
    found = []
    for name, (says, claims) in CONSTANTS.items():
        sweep = SWEEPS[name]
        cases, holds, told = [], [], []
        for pure in sweep.kinds:
            kind = "pure" if pure else "mixed"
            met = {value: record("core", f"{figure_of(name, value)}_{kind}_{JOBS_SWEPT}") for value in sweep.values}
            told.append(f"{kind}: " + ", ".join(f"{value:g}: {part:.2f}" for value, part in met.items()))
            best = max(list(met.values())[1:-1])
            for at, declines in zip((sweep.values[0], sweep.values[-1]), claims, strict=True):
                cases.append(f"at {at:g}, {kind}")
                holds.append((best - met[at] > DECLINE) == declines)
        bundles = f"{record('core', 'swept_bundles'):.0f} bundles; less than {DECLINE} counts as none"
        measured = f"part of the ceiling met by {sweep.title} ({bundles}); {'; '.join(told)}"
        found.append(Finding(says, f"{sweep.paper}, {sweep.where}", measured, verdict(holds, cases)))
    return found


def _watched(record: Record, part: str, what: str) -> dict[str, float]:
    return {cell: record("core", f"watched_{cell}_{part}_{what}") for cell in WATCHED}


def _finds_infeasible(record: Record, row: str, words: str) -> Finding:
    at_once, wrong, hopeless = (_watched(record, row, what) for what in ("found_at_once", "wrong", "hopeless"))
    without = _watched(record, "dkf", "hopeless")
    told = "; ".join(
        f"{of}: right after exploration {100 * at_once[cell]:.0f} % of the jobs that are impossible even alone are "
        f"found infeasible, and {100 * wrong[cell]:.0f} % of the possible ones; the impossible ones have "
        f"{100 * hopeless[cell]:.0f} % of the device from then on, {100 * without[cell]:.0f} % without the look-ahead"
        for cell, of in WATCHED.items()
    )
    holds = [at_once[cell] > 0.9 and hopeless[cell] < without[cell] for cell in WATCHED]
    said = verdict(holds, [f"for {of}" for of in WATCHED.values()])
    said += "; many possible jobs are found infeasible too" * (max(wrong.values()) > 0.1)
    says = "LaiRA identifies infeasible tasks accurately, shortly after the exploration, and gives them a minimum"
    return Finding(says, "LaiRA, figs 8, 9", f"{words}; {told}", said)


def _first_is_steady(record: Record) -> Finding:
    whole, without = (_watched(record, part, "changes") for part in ("whole", "ucb"))
    told = "; ".join(f"{words}: {whole[cell]:.2f} with UCB, {without[cell]:.2f} without"
                     for cell, words in WATCHED.items())  # fmt: skip
    says = "Without UCB the job of the highest priority changes significantly more often"
    said = verdict([without[cell] > 1.05 * whole[cell] for cell in WATCHED], [f"for {one}" for one in WATCHED.values()])
    return Finding(says, "LaiRA, figs 10(c), 11", f"changes per job: {told}", said)


def _scores_without_ucb(record: Record) -> Finding:
    whole, without = (_watched(record, part, "negative") for part in ("whole", "ucb"))
    told = "; ".join(f"{words}: {100 * whole[cell]:.0f} % with UCB, {100 * without[cell]:.0f} % without"
                     for cell, words in WATCHED.items())  # fmt: skip
    says = "Without UCB scores become negative, pure and mixed"
    said = verdict([without[cell] > 0.1 and without[cell] > 2 * whole[cell] for cell in WATCHED],
                   [f"for {one}" for one in WATCHED.values()])  # fmt: skip
    return Finding(says, "LaiRA, figs 10(b), 11", f"part of the scores that is negative: {told}", said)


def _round(record: Record) -> Finding:
    ten, hundred = (record("core", f"lara_ms_{jobs}") for jobs in (10, 100))
    measured = (
        f"a whole round of the scheduler, with verdicts and grants, takes {ten:.2f} ms with 10 jobs, {hundred:.2f} ms "
        "with 100"
    )
    says = "A round of prediction and allocation takes 0.7 ms with 100 jobs, and grows linearly"
    said = f"{'as fast' if hundred <= 0.7 else 'slower'}, and grows {'less than ' * (hundred < 8 * ten)}linearly"
    return Finding(says, "LARA, fig. 6(b)", measured, said)


def _first_come(record: Record) -> Finding:
    others = ("edf", "lrf", "lara", "laira")
    fifo = {order: record("evening", f"met_{order}_fifo") for order in ("file", "random")}
    best = {order: max(record("evening", f"met_{order}_{name}") for name in others) for order in fifo}
    names = ("STF", "LRF", "LARA", "LaiRA")
    ten = {name: record("core", f"papers_mixed_10_fraction_{name}") for name in ("FIFO", *names)}
    measured = (
        f"`examples/evening.yaml`, 8 jobs of which 6 can be met: {fifo['file']:.2f}, the best of {listed(names)} "
        f"{best['file']:.2f}; in a random order {fifo['random']:.2f}, {best['random']:.2f}; recorded bundles, mixed, "
        f"10 jobs: {ten['FIFO']:.2f} of the ceiling, the worst of the others {min(ten[name] for name in names):.2f}"
    )
    holds = [fifo[order] < best[order] for order in fifo] + [ten["FIFO"] < min(ten[name] for name in names)]
    cases = ["for that file", "for its jobs in a random order", "for the recorded bundles"]
    says = '"First-come, first-served" "can be highly inefficient"; neither paper compares with it'
    return Finding(says, "LARA, introduction", measured, verdict(holds, cases))
