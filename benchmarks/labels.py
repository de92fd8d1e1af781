"""Headings and labels of measured figures on the pages that are generated from ``docs/results.json``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

# Sizes of a run, from the smallest.
SIZES = ("quick", "default", "full")
# Benchmarks in the order of the page, each with its heading.
HEADINGS = {
    "shares": "Shares of one device",
    "pool": "Scripts and a bundle on one pool",
    "devices": "Two devices",
    "overhead": "Overhead of the callback",
    "loops": "Four kinds of loops",
    "endurance": "Millions of batches with the callback",
    "gpu_evidence": "On a GPU",
    "decide": "A round of the scheduler",
    "beside": "Two trainings at once on one device",
    "lasting": "A pool that lasts",
    "scale": "A thousand jobs at once",
    "page": "The page of a pool of a thousand jobs",
    "search": "Searches with a deadline",
    "live_search": "Searches with a deadline, trained live",
    "live_pool_search": "A search in a pool, beside Ray Tune",
    "waiting": "Waiting times at the command line",
    "core": "Policies on recorded curves",
    "extrapolation": "Estimators on recorded curves",
    "ordinary": "What is said of ordinary trainings",
    "task_kinds": "What users are told of the end of their trainings, by kind",
    "kinds": "Deadlines met on a cluster of three kinds of GPUs",
    "demo": "The demo",
    "evening": "First come, first served",
    "paper_tables": "Bundles in the kind of the papers' tables, trained live",
    "tools": "The same bundle under Slurm, Ray Tune, all at once and in a pool, trained live",
    "again": "An evening planned with the one before it",
    "decor": "Ending on the deadline (decor)",
    "resize": "Resizing a training",
    "saved": "Device-seconds saved",
    "cluster": "A published cluster trace",
    "spot": "Spot market",
    "spot_first_jobs": "The first jobs of a pool on the spot market",
    "spot_events": "Plans that decide on events, in virtual time on recorded markets",
    "late": "One node under a deadline: the benchmark of Can't Be Late",
    "zones": "One node under a deadline in several zones",
    "loss_targets": "A loss to reach by a deadline on the spot market",
    "spot_live": "Spot market, live",
    "placement": "Edge and cloud",
}
# Policies of the example's evening.
EVENING = ("fifo", "edf", "lrf", "lara", "laira", "triage")
# Policies of the benchmark of one node under a deadline.
LATE = {
    "ours": "ours",
    "up": "Uniform Progress as in its text",
    "up_code": "Uniform Progress as in its code",
    "optimum": "optimum in hindsight",
}
# What the selector of spot policies begins with.
FIRST_JOBS = {
    "nothing": "... above that, if the first policy is taken until there is feedback, as where nothing is known",
    "past": "... if it has played jobs in the past of the market",
    "earlier": "... if it has the feedback of ten jobs of an earlier run",
    "both": "... if it has both",
}
# Plans over several zones, and what they are compared with.
ZONES = {
    "alone": "each of the zones alone, the mean",
    "best": "the best zone alone, in hindsight",
    "own_best": "each job in its own best zone, in hindsight",
    "three": "three zones of a region",
    "all": "all zones",
    "free": "all zones, if moves were free",
}
# What a job with a loss to reach is planned with on a market.
LOSS_TARGETS = {
    "history": "the same, with three earlier runs of its task known",
    "median": "the median of the forecast",
    "guess": "a guess, half of the training that was configured",
    "bound": "all of the training that was configured",
    "exact": "the work, known exactly",
}
# Markets of the benchmark of decisions on events, with the intervals of the plans.
EVENTS = {"aws": "one node of AWS, intervals of 1 h", "a100": "four A100 cards, intervals of 2 h"}
ESTIMATORS = ("posterior", "least_squares", "weighted", "log_time", "kalman", "dkf")
# Prices of the placement benchmark; what its plans are compared in; planners after a surge; what is forecast.
EDGE_PRICES = {"edge_pays": "Edge at 0.8 of the cloud's price", "as_published": "Edge at the paper's 1.5"}
PLANS = (
    (
        "saved",
        "cost saved against planning the busiest period; against one task at a time",
        "{:.1f} %; {saved_incremental_NAME:.1f} % (the paper's text: 9.5 %; 21.7 %; its costs: 11.9 %; 23.1 %), with "
        "{moves_NAME:.0f} moves between periods (those two: {moves_one_period_NAME:.0f}; {moves_incremental_NAME:.0f})",
    ),
    (
        "few_moves_saved",
        "... with moves weighed",
        "{:.1f} %; {few_moves_saved_incremental_NAME:.1f} %, with {few_moves_NAME:.0f} moves",
    ),
    (
        "gpus_saved",
        "GPUs saved, without moves weighed",
        "{:.1f} %; {gpus_saved_incremental_NAME:.1f} % (the paper: 6.4 %; 12.6 %)",
    ),
)
REACTIONS = {
    "left": "left as it is",
    "heuristic": "the paper's heuristic",
    "day_anew": "the day planned anew",
    "anew": "the period planned anew",
    "replan": "the period planned anew, moves weighed (the default)",
}
ARRIVALS = {
    "surges": "surges relative to plan",
    "arrivals": "jobs that arrive, a recorded trace",
    "gpus": "GPUs asked for, a recorded trace",
}
# Kinds of trainings whose forecasts are compared with what came, in the order of the page.
KINDS = {
    "small_images": "small, images",
    "small_text": "small, text",
    "small_tables": "small, tables of numbers",
    "small_equations": "small, equations, diffusion and arithmetic",
    "small_control": "small, control by reward",
    "large_images": "published, images",
    "large_text": "published, text",
    "large_speech": "published, speech",
    "large_graphs": "published, graphs",
    "large_scans": "published, medical images",
    "large_control": "published, control from recorded data",
}
# Label and format of each figure; the format may name other figures of the run. A benchmark without an entry shows all
# of its figures by their names.
LABELS: Mapping[str, Mapping[str, tuple[str, str]]] = {
    "spot_live": {
        "live_on_time_pct": ("Days on time: A100 market, a day in eight minutes, odd ones without notice", "{:.0f} %"),
        "live_close_pct": ("Days that cost within 10 % of the same day in virtual time, mean of 20", "{:.0f} %"),
        "live_cost_in_simulated": ("Live cost as a multiple of that: median", "{:.2f}"),
        "live_cost_in_simulated_min": ("... smallest", "{:.2f}"),
        "live_cost_in_simulated_max": ("... largest", "{:.2f}"),
        "live_ledger_in_invoice_min": (
            "Ledger as a multiple of the provisioner's record of nodes: smallest",
            "{:.3f}",
        ),
        "live_ledger_in_invoice_max": ("... largest", "{:.3f}"),
        "live_cost_in_known": ("... of a backtest that knows throughput and start-up from the start: median", "{:.2f}"),
        "live_saved_pct": ("Saved against on-demand nodes alone: median", "{:.0f} %"),
    },
    "shares": {
        "worst_share_error": ("Worst error of a share over any 10 s", "{:.2g} of the share"),
        "device_use": ("Fraction of the device that jobs use while they share it", "{:.2f}"),
        "reaction_s": ("Time until a changed grant takes effect", "{:.2f} s"),
        "held_cpu": ("Cores used by a held job", "{:.2g}"),
        "solo_drift": ("Drift of the throughput of a job alone, before and after", "{:.2g}"),
    },
    "beside": {
        **{
            figure: (f"Ten trainings {text}, {gpu.upper()}", "{:.2f} times the work of turns")
            for gpu in ("v100", "p100", "k80")
            for figure, text in (
                (f"gain_{gpu}", "on a GPU, paces unknown at first"),
                (f"gain_known_{gpu}", "paired greedily by the measured paces"),
            )
        },
        "met_v100": ("Deadlines met, V100, as a fraction of what a clairvoyant scheduler meets by turns", "{:.3f}"),
        "met_turns_v100": ("... by turns", "{:.3f}"),
        "met_behind_cells": (
            "Cells of load and size in which turns meet more, by more than a standard error",
            "{:.0f}",
        ),
        "bad_pairs": ("Part of the device's time in pairs that do less than turns", "{:.1%}"),
        "sum_cpu": ("Four trainings of one thread each on a device of two cores, in real processes", "{:.2f} of turns"),
        "all_at_once_cpu": ("... all started at once without a pool", "{:.2f} of turns"),
        "sum_cpu_full": ("Two trainings that use both cores", "{:.2f} of turns"),
    },
    "pool": {
        "worst_share_error": (
            "Worst error of a share over any 10 s, two scripts and a bundle of three",
            "{:.2g} of the share",
        ),
        "uneven": ("Unevenness over 20 s", "{:.2g} of the mean"),
        "device_use": ("Work done together, as a fraction of what one job does alone", "{:.2f}"),
        "kill_s": ("Time until the other jobs have the share of a killed script", "{:.2g} s"),
        "leave_s": ("Time until the other jobs have the share of a script that left", "{:.2g} s"),
    },
    "devices": {
        "two_on_two": ("Work per device, two jobs on two devices", "{:.2f}"),
        "four_on_two": ("Work per device, four jobs on two devices", "{:.2f}"),
    },
    "overhead": {
        "paid_us": (
            "What a user pays a batch, above an empty callback: scheduler in the process; in a pool",
            "{:.0f} µs; {paid_pool_us:.0f} µs",
        ),
        "trainer_us_none": (
            "A batch in a Trainer: without a callback; with an empty one",
            "{:.0f} µs; {trainer_us_empty:.0f} µs",
        ),
        "trainer_us_ours": (
            "... with the callback: scheduler in the process; in a pool",
            "{:.0f} µs; {trainer_us_pool:.0f} µs",
        ),
        "callback_us": ("Hooks of the callback per batch, median", "{:.2g} µs"),
        "callback_p99_us": ("Hooks of the callback per batch, 99th percentile", "{:.2g} µs"),
        "blocking_call_ratio": ("Blocking actor call, as a multiple", "{:.0f}"),
        "tune_report_ratio": ("Ray Tune's report callback, as a multiple", "{:.0f}"),
    },
    "loops": {
        "overhead_us_plain": ("What a user pays a batch of .6 ms above the loop without us: a plain loop", "{:.1f} µs"),
        "overhead_us_fabric": ("... Fabric, with a callback", "{:.1f} µs"),
        "overhead_us_hf": ("... the Trainer of `transformers`, above a callback that does nothing", "{:.1f} µs"),
        "overhead_us_lightning": ("... Lightning's Trainer, above a callback that does nothing", "{:.1f} µs"),
        "same_weights": ("Trainings with the same weights with and without us, of digits and a transformer", "{:.0%}"),
        "same_cells": ("Trainings whose curves are the same in all four loops, to the bit", "{:.0%}"),
        "worst_share_error": (
            "Worst error of a share over any 10 s, one loop of each kind on one device",
            "{:.2g} of the share",
        ),
        "device_use": ("Work done together, as a fraction of what one does alone", "{:.2f}"),
    },
    "endurance": {
        "batches": ("Batches", "{:,.0f}"),
        "growth_mib": ("Growth of the process from a tenth of them to the last one", "{:.1f} MiB"),
        "more_descriptors": ("More descriptors; more threads", "{:.0f}; {more_threads:.0f}"),
        "late_cost_ratio": (
            "Cost of the hooks per batch in the last tenth, as a multiple of that in the second",
            "{:.2f}",
        ),
    },
    "gpu_evidence": {
        "checks_passed": (
            "Tests that need a GPU: passed; failed; skipped",
            "{:.0f}; {checks_failed:.0f}; {checks_skipped:.0f}",
        ),
        "callback_us": (
            "Hooks of the callback per batch: median; 99th percentile",
            "{:.0f} µs; {callback_p99_us:.0f} µs",
        ),
        "slower_pct": ("A training of small batches with the callback, against without", "{:+.1f} % of time"),
        "hooks_alone_us": (
            "Hooks above an empty callback, alone on the device: median; mean; 99th percentile",
            "{:.0f}; {hooks_alone_mean_us:.0f}; {hooks_alone_p99_us:.0f} µs a batch",
        ),
        "hooks_turns_us": (
            "... in turns with another process, but for the turns: median; mean; 99th percentile",
            "{:.0f}; {hooks_turns_mean_us:.0f}; {hooks_turns_p99_us:.0f} µs a batch",
        ),
        "slower_alone_pct": (
            "A training of small batches with the callback, against an empty one, alone",
            "{:+.1f} % of time",
        ),
        "hooks_graph_us": (
            "The same with a step that is one CUDA graph: hooks, median; time",
            "{:.0f} µs; {slower_graph_pct:+.1f} %",
        ),
        "hooks_compiled_us": (
            'The same with torch.compile(mode="reduce-overhead"): hooks, median; time',
            "{:.0f} µs; {slower_compiled_pct:+.1f} %",
        ),
        "four_turns": ("Four small trainings, work over that of one alone: by turns", "{:.2f}"),
        "four_share_error": ("... largest error of the share of one, by turns", "{:.2g} of the share"),
        "four_unmanaged": ("... all at once, unmanaged", "{:.2f}"),
        "four_beside": ("... beside each other as the scheduler decides, no pace known before", "{:.2f}"),
        "four_beside_s": (
            "... until it has chosen; jobs that train beside others, in how many companies",
            "{:.1f} s; {four_beside_jobs:.0f} of 4, {four_beside_companies:.0f}",
        ),
        "four_mps": ("... under MPS: all at once, unmanaged", "{:.2f}"),
        "four_mps_beside": ("... under MPS: beside each other as the scheduler decides", "{:.2f}"),
        "four_met_turns": ("... with deadlines, of which turns can meet two: met by turns", "{:.0f} of 4"),
        "four_met_unmanaged": ("... met unmanaged", "{:.0f} of 4"),
        "four_met_beside": ("... met beside each other", "{:.0f} of 4"),
        "share_error": ("Error of a share over 20 s, two jobs", "{:.2g} of the share"),
        "resize_s": ("From the decision to resize to the first batch, one GPU and two", "{:.1f} s"),
        "peak_in_torch": ("Peak of memory that is reported, of what torch had reserved", "{:.2f}"),
        "moved_gib": ("State that a held job moves to the host's memory", "{:.1f} GiB"),
        "held_fraction": ("... memory that it keeps reserved on the GPU while it is held", "{:.2g} of it"),
        "out_gb_s": ("... to the host; the first time; back", "{:.1f}; {out_first_gb_s:.1f}; {back_gb_s:.1f} GB/s"),
        "both_gib": (
            "Two jobs that take turns: state of both; memory that there is for them",
            "{:.1f}; {room_gib:.1f} GiB",
        ),
        "change_s": ("... last batch of one to first batch of the other, median", "{:.2f} s, of {changes:.0f} changes"),
        "suspend_s_8": (
            "A process of 8 GiB that is suspended: until it has left; until it is back",
            "{:.1f} s, {suspend_gb_s_8:.1f} GB/s; {resume_s_8:.1f} s, {resume_gb_s_8:.1f} GB/s",
        ),
        "suspended_mib_8": ("... memory that it keeps on the GPU", "{:.0f} MiB"),
        "suspend_s_1": ("... the same of 1 GiB", "{:.1f} s; {resume_s_1:.1f} s"),
        "suspend_s_40": (
            "... the same of 40 GiB; what it keeps on the GPU",
            "{:.1f} s, {suspend_gb_s_40:.1f} GB/s; {resume_s_40:.1f} s, {resume_gb_s_40:.1f} GB/s; "
            "{suspended_mib_40:.0f} MiB",
        ),
        "demo_met_triage": (
            "Demo: deadlines met by triage; fifo; with all work known",
            "{:.0f}; {demo_met_fifo:.0f}; {demo_ceiling:.0f}",
        ),
    },
    "demo": {
        "met_triage": (
            "Deadlines met in virtual time, by fifo; edf; lara; laira; guarded_edf; triage; of those that could be",
            "{met_fifo:.0f}; {met_edf:.0f}; {met_lara:.0f}; {met_laira:.0f}; {met_guarded_edf:.0f}; {met_triage:.0f}; "
            "of {ceiling:.0f}",
        ),
    },
    "decide": {
        "ms_100": ("Round over 100 jobs, lara", "{:.2g} ms"),
        "ms_10000": ("Round over 10,000 jobs, lara", "{:.2g} ms"),
        "exponent": ("Growth of a round with the number n of jobs, lara: exponent of n", "{:.2f}"),
        "ms_100_on_8": ("Round over 100 jobs on eight devices, guarded_edf", "{:.2g} ms"),
        "ms_10000_on_8": ("Round over 10,000 jobs on eight devices, guarded_edf", "{:.2g} ms"),
        "laira_ms_10000": ("Round over 10,000 jobs, laira", "{:.2g} ms"),
        "ours_ms_10000": ("Round over 10,000 jobs, triage", "{:.2g} ms"),
        "ours_anew_ms_10000": ("Round over 10,000 jobs, triage, every curve with a new loss cell", "{:.2g} ms"),
        "bank_ms_10000": ("Update of 10,000 dynamic Kalman filters with one loss cell each", "{:.2g} ms"),
        "bank_vs_filterpy": ("The same with filterpy one filter at a time, as a multiple", "{:.0f}"),
    },
    "lasting": {
        "events": ("Events in four weeks of virtual time, a hundred jobs at a time", "{:.2g}"),
        "ended": ("Jobs that ended", "{:,.0f}"),
        "restart_s_max": ("Longest restart at any age", "{:.2g} s"),
        "disk_mb": ("Journal with its snapshots, at its largest", "{:.0f} MB"),
        "memory_growth_pct": ("Memory of the scheduler's process, last day against the first", "{:+.0f} %"),
        "round_growth_pct": ("A round, last day against the first", "{:+.0f} %"),
    },
    "scale": {
        "reports_per_s_max": ("Reports per second, all sent as fast as they are answered", "{:,.0f}"),
        "actor_cores_1000": ("Cores used by the scheduler, 1,000 scripts", "{:.2g}"),
        "p50_answer_ms_1000": ("Answer to a report, 1,000 scripts, median", "{:.2g} ms"),
        "p99_grant_ms_1000": ("From a decision to its grant, 1,000 scripts, 99th percentile", "{:.0f} ms"),
        "actor_cores_1000_ray": ("Cores used by the scheduler, 1,000 launched jobs", "{:.2g}"),
        "p99_grant_ms_1000_ray": ("From a decision to its grant, 1,000 launched jobs, 99th percentile", "{:.0f} ms"),
    },
    "page": {
        "first_paint_ms_1000": ("From the request to the painted list of 1,000 jobs", "{:.0f} ms"),
        **{
            f"{name}_pages_{pages}": (f"{words}, {pages} open pages", form)
            for name, words, form in (
                ("round_ms", "A round of the scheduler", "{:.1f} ms"),
                ("p99_ms", "Answer to a report, 99th percentile", "{:.0f} ms"),
                ("grant_p99_ms", "From a decision to its grant, 99th percentile", "{:.0f} ms"),
                ("cores", "Cores used by the scheduler", "{:.2g}"),
                ("page_cores", "Cores used by the page's server", "{:.2g}"),
            )
            for pages in (0, 10, 100)
        },
    },
    "search": {
        f"{figure}_{deadline}{end}": (f"{devices}, {many}: {words}", form)
        for end, devices in (("_on_1", "One device"), ("", "Four devices"), ("_on_16", "Sixteen devices"))
        for deadline, many in (("0.5", "half a whole trial"), ("1", "one"), ("2", "two"), ("4", "four"))
        for figure, words, form in (
            ("ours_best", "loss at the deadline, DeadlineSearch", "{:.4f}"),
            ("pruner_best", "ForecastPruner", "{:.4f}"),
            ("best_other", "the best other rule", "{:.4f}"),
            ("standard_error_other", "standard error of the difference", "{:.4f}"),
            ("work_ratio", "work of DeadlineSearch for that loss, over its own", "{:.2f}"),
            ("best_package", "the best rule of Ray Tune and Optuna", "{:.4f}"),
            ("work_ratio_package", "work of DeadlineSearch for that loss, over its own", "{:.2f}"),
        )
    }
    | {
        f"{key}_{figure}_worth_{worth}{end}": (
            f"{devices}, four, 1 % is worth {worth} of a whole trial: {rule}: {words}",
            form,
        )
        for end, devices in (("_on_1", "One device"), ("", "Four devices"), ("_on_16", "Sixteen devices"))
        for worth in ("0.1", "0.03")
        for key, rule in (("ours", "DeadlineSearch"), ("cfbo", "CFBO's rule on our forecasts"))
        for figure, words, form in (
            ("loss", "loss at its end", "{:.4f}"),
            ("saved", "device seconds saved", "{:.0%}"),
        )
    },
    "live_search": {
        f"{name}_{end}": (f"{words}, {what}", "{:.4f}")
        for name, words in (
            ("search", "Search"),
            ("pruner", "Optuna with ForecastPruner"),
            ("hyperband", "Optuna with HyperbandPruner"),
            ("halving", "Optuna with SuccessiveHalvingPruner"),
            ("median", "Optuna with MedianPruner"),
        )
        for end, what in (("loss", "loss after 30 s, mean of five"), ("loss_error", "its standard error"))
    },
    "live_pool_search": {
        "pool_loss": ("Search in a pool: loss at the deadline, mean of three", "{:.4f}"),
        "tune_loss": ("Ray Tune, TPE and ASHA", "{:.4f}"),
        "difference_error": ("Standard error of the difference", "{:.4f}"),
        "pool_epochs": ("Search in a pool: epochs trained", "{:.0f}"),
        "tune_epochs": ("Ray Tune: epochs trained", "{:.0f}"),
    },
    "waiting": {
        "import_lightning": ("Import of Lightning, for comparison", "{:.2g} s"),
        "first_line_of_run": ("First line of `run`", "{:.2g} s"),
        "up": ("`up` with two workers", "{:.2g} s"),
        "up_submit_and_met_by_its_first_job": ("`up` until its first job has met its target", "{:.2g} s"),
        "submit": ("`submit`", "{:.2g} s"),
        "submit_checked_on_the_spot": ("`submit`, checked on the spot", "{:.2g} s"),
        "status": ("`status`", "{:.2g} s"),
        "down": ("`down`", "{:.2g} s"),
    },
    "core": {
        "ours_ceiling_fraction": (
            "triage: deadlines met, as a fraction of what a clairvoyant scheduler meets",
            "{:.2f}",
        ),
        "ours_vs_lara": ("triage: deadlines met, as a multiple of lara", "{:.2f}"),
        "ours_vs_laira": ("triage: deadlines met, as a multiple of laira", "{:.2f}"),
        "switches_per_job": ("triage: switches per job", "{:.2f}"),
        "misbehaving_ceiling_fraction": ("Of the ceiling on curves that misbehave: triage", "{:.3f}"),
        "misbehaving_best_other": ("... and the best of the other rows", "{:.3f}"),
        "ours_behind_cells": ("Settings in which triage is behind guarded_edf", "{:.0f}"),
        "history_gain": ("triage: more of what a clairvoyant meets, by three earlier runs of each task", "{:.3f}"),
        "told_infeasible": ("triage: jobs that could be met alone, ever told infeasible", "{:.3f}"),
        "told_infeasible_wrongly": ("... while they could still be met alone", "{:.3f}"),
        "infeasible_found": ("triage: jobs that could not be met even alone, told infeasible", "{:.3f}"),
        "verdict_changes_median": ("triage: changes of verdict per job, median", "{:.1f}"),
        "verdict_changes_mean": ("... mean", "{:.2f}"),
        **{
            f"{verdict}_true_{part}": (f'triage: "{told}" comes true, told at {part} % of the way', "{:.2f}")
            for verdict, told in (("feasible", "feasible"), ("at_risk", "at risk"))
            for part in (5, 10, 20, 50)
        },
        "coverage_q50": ("Fraction of forecasts whose median covers the work left, at 5 to 50 % of the way", "{:.2f}"),
        "coverage_q90": ("The same of the 90 % quantile", "{:.2f}"),
    },
    "ordinary": {
        **{
            f"median_ln_error_{part}": (f"Median abs ln error of the work left, {part} % of the way", "{:.2f}")
            for part in (5, 10, 20, 30, 60)
        },
        **{
            f"coverage_q{level}": (f"Part of the truths at or below the {level} % quantile", "{:.2f}")
            for level in (10, 50, 90)
        },
        "said_part": ("Part of stops from 30 % of the way on at which a time is said to have been enough", "{:.2f}"),
        "said_within_2": ("Part of these times within a factor of two of the truth", "{:.2f}"),
        "said_never": ("Verdict infeasible, part of stops", "{:.3f}"),
        "said_never_false": ("Part of these at which the target was met later", "{:.2f}"),
        "feasible_below_floor": ("Verdict feasible where the target lies below the floor, part of stops", "{:.2f}"),
    },
    "task_kinds": {
        label: words
        for kind, name in KINDS.items()
        for label, words in {
            f"{kind}_told_10": (
                f"{name}: looks at 10; 20; 50 % of the way at which an end was shown",
                f"{{:.0%}}; {{{kind}_told_20:.0%}}; {{{kind}_told_50:.0%}} of {{{kind}_trainings:.0f}}",
            ),
            f"{kind}_factor_10": (
                "... how many times too long or too short the time to it was, median",
                f"{{:.1f}}; {{{kind}_factor_20:.1f}}; {{{kind}_factor_50:.1f}}",
            ),
            f"{kind}_within": ("... looks at which the truth came between early and late end, of 70 %", "{:.0%}"),
        }.items()
    },
    "extrapolation": {
        **{
            f"{name}_work": (f"Work left, median absolute ln(forecast / truth): {name}", "{:.2f}")
            for name in ESTIMATORS
        },
        **{f"{name}_q90": (f"Work left, 90 % quantile covers: {name}", "{:.2f}") for name in ESTIMATORS},
        **{f"{name}_error_mixed_10": (f"Loss ahead, median error, 10 % seen: {name}", "{:.2f}") for name in ESTIMATORS},
    },
    "evening": {
        f"met_{order}_{name}": (f"Jobs met of `examples/evening.yaml`, {words}: {name}", "{:.2f}")
        for order, words in (("file", "in the file's order"), ("random", "in a random order"))
        for name in EVENING
    },
    "again": {
        "seeds": ("Pairs of evenings", "{:.0f}"),
        "met_without": ("Part of the deadlines met that can be met, without the runs of the first evening", "{:.2f}"),
        "met_with": ("... with them", "{:.2f}"),
        "better_pct": ("Pairs in which more are met with them", "{:.0f} %"),
        "worse_pct": ("Pairs in which fewer are", "{:.0f} %"),
        "wasted_s_without": ("Seconds of the device on jobs that missed, of 20, without them", "{:.1f}"),
        "wasted_s_with": ("... with them", "{:.1f}"),
        "told_infeasible_wrongly_without": (
            "Jobs told infeasible that could still be met alone, of 8 a pair, without them",
            "{:.0f}",
        ),
        "told_infeasible_wrongly_with": ("... with them", "{:.0f}"),
        "ceiling": ("Trained for real: targets that could be met", "{:.0f}"),
        "live_met_without": ("... met without the runs of the first evening", "{:.0f}"),
        "live_met_with": ("... met with them", "{:.0f}"),
        "live_wasted_s_without": ("... seconds of the device on jobs that missed, without them", "{:.1f}"),
        "live_wasted_s_with": ("... with them", "{:.1f}"),
    },
    "paper_tables": {  # all of them have a section of their own
        f"{name}_triage_met": (
            f"{title}: jobs met live by `triage`; LaiRA; guarded EDF; all at once; one after another; at most",
            f"{{:.1f}}; {{{name}_LaiRA_met:.1f}}; {{{name}_guarded_EDF_met:.1f}}; {{{name}_all_at_once_met:.1f}}; "
            f"{{{name}_one_after_another_met:.1f}}; {{{name}_triage_ceiling:.1f}}",
        )
        for name, title in (
            ("five", "Five models on a device"),
            ("ten", "Ten models on a device"),
            ("five_on_two", "Five models on two devices"),
            ("ten_on_two", "Ten models on two devices"),
        )
    },
    "tools": {
        "seeds": ("Bundles of ten trainings on one device, of two minutes each", "{:.0f}"),
        **{
            f"{key}_met": (
                f"{title}: deadlines met of ten; device seconds, of these on jobs that missed; lines to write",
                f"{{:.2f}} ± {{{key}_met_se:.2f}}; {{{key}_seconds:.0f}}, {{{key}_seconds_missed:.0f}}; "
                f"{{{key}_lines:.0f}}",
            )
            for key, title in (
                ("pool", "Pool, `triage`"),
                ("slurm", "Slurm, an array whose jobs are requeued after a minute"),
                ("ray_tune", "Ray Tune, ASHA"),
                ("all_at_once", "All at once"),
            )
        },
    },
    "decor": {  # the paper's tables have a section of their own
        "mean_abs_eps_relaxed": ("Mean distance of the end from the deadline, parts of a CPU", "{:.2f} %"),
        "mean_abs_eps_changed": ("The same when the deadline is cut to 80 % during the run", "{:.2f} %"),
        "mean_abs_eps_neighbour": ("The same with half a core taken by others for a third of the run", "{:.2f} %"),
        "mean_abs_eps_tight": ("The same with a deadline of the minimum training time (d_c 1.0)", "{:.2f} %"),
        "mean_abs_eps_relaxed_devices": (
            "Mean distance of the end from the deadline, one or two logical devices",
            "{:.2f} %",
        ),
        "mean_abs_eps_changed_devices": ("The same when the deadline is cut to 80 % during the run", "{:.2f} %"),
        "late_runs": ("Late runs of those that aim at 95 % of their time", "{:.0f}"),
        "runs": ("Runs", "{:.0f}"),
    },
    "resize": {
        "warm_s": ("From decision to first batch, two warm workers", "{:.2g} s"),
        "cold_s": ("From decision to first batch, new processes", "{:.2g} s"),
        "cold_ratio": ("The second as a multiple of the first", "{:.0f}"),
        "warm_to_two_s": ("From decision to first batch, one device to two, warm", "{:.2g} s"),
        "cold_to_two_s": ("From decision to first batch, one device to two, new processes", "{:.2g} s"),
        "ray_train_s": (
            "From a device that becomes free to first batch, Ray Train, elastic",
            "{:.2g} s",
        ),
        "steps_compared": ("Steps compared with those of a run without resizes", "{:.0f}"),
        "loss_difference": ("Difference of the last loss with resizes and without", "{:.2g}"),
        "loss_spread_of_seeds": ("Difference of the last loss between seeds", "{:.2g}"),
    },
    "saved": {
        "saved_pct": (
            "Device-seconds saved, compared with the fewest fixed devices that suffice",
            "{:.1f} %",
        ),
        "device_seconds": ("Device-seconds of five jobs on four logical devices under decor", "{:.0f}"),
        "fixed_device_seconds": ("Device-seconds with fixed devices", "{:.0f}"),
        "met": ("Deadlines met under decor", "{:.0f} of 5"),
        "fixed_met": ("Deadlines met with fixed devices", "{:.0f} of 5"),
    },
    "kinds": {
        "bound": ("Deadlines that any scheduler could meet, upper bound, mean over loads", "{:.3f}"),
        "ours_met": ("Deadlines met, mean over loads: triage", "{:.3f} ± {ours_met_error:.3f}"),
        "learns_met": ("... that learns rates as jobs train", "{:.3f} ± {learns_met_error:.3f}"),
        "blind_met": ("... that takes all devices for alike", "{:.3f} ± {blind_met_error:.3f}"),
        "edf_met": ("... earliest deadline first, on the kind where it ends first", "{:.3f} ± {edf_met_error:.3f}"),
        "gavel_best_met": ("... Gavel's linear program, the better of its rows", "{:.3f} ± {gavel_best_met_error:.3f}"),
        "over_blind": (
            "Triage over the blind, where the blind meets nearest to half (load)",
            "{:.2f} ({half_load:.0f})",
        ),
        "unseen_error": ("Rate on a kind never seen, median error of its logarithm", "{:.2f}"),
        "unseen_within_1": (
            "... within one and two of the spreads that are told",
            "{:.0%}; {unseen_within_2:.0%}",
        ),
        "behind_gavel_cells": (
            "Loads at which it is behind Gavel's by more than a standard error; if moves cost nothing",
            "{:.0f}; {behind_gavel_cells_free_moves:.0f}",
        ),
    },
    "cluster": {
        "bound": ("Deadlines that any scheduler could meet (upper bound)", "{:.0f} of {jobs:.0f}"),
        "bound_pct": ("Deadlines that any scheduler could meet (upper bound)", "{:.1f} %"),
        "as_asked_pct": ("Deadlines met with the devices that each job asked for", "{:.1f} %"),
        "ours_met_0": (
            "Deadlines met if a restart costs nothing: decor; the best of all others",
            "{:.0f}; {best_other_met_0:.0f}",
        ),
        "ours_met_03": (
            "Deadlines met if a restart costs 0.3 s, as measured for two warm workers: decor; the best of all others",
            "{:.0f}; {best_other_met_03:.0f}",
        ),
        "ours_met_8": (
            "Deadlines met if a restart costs 8 s, as in ElasticFlow's paper: decor; the best of all others",
            "{:.0f}; {best_other_met_8:.0f}",
        ),
        "ours_met_model": (
            "Deadlines met if a restart costs 25 to 250 s by model, assumed: decor; the best of all others",
            "{:.0f}; {best_other_met_model:.0f}",
        ),
        "jittered_bound": (
            "Submissions shifted by up to 600 s, four seeds: upper bound",
            "{:.1f} of {jittered_jobs:.0f}",
        ),
        "jittered_ours_met_0": (
            "... restarts free: decor and its standard error; the best other",
            "{:.1f} ± {jittered_ours_se_0:.1f}; {jittered_best_other_met_0:.1f}",
        ),
        "jittered_ours_met_03": (
            "... restarts of 0.3 s: decor and its standard error; the best other",
            "{:.1f} ± {jittered_ours_se_03:.1f}; {jittered_best_other_met_03:.1f}",
        ),
        "jittered_ours_met_8": (
            "... restarts of 8 s: decor and its standard error; the best other",
            "{:.1f} ± {jittered_ours_se_8:.1f}; {jittered_best_other_met_8:.1f}",
        ),
        "jittered_ours_met_model": (
            "... restarts by model: decor and its standard error; the best other",
            "{:.1f} ± {jittered_ours_se_model:.1f}; {jittered_best_other_met_model:.1f}",
        ),
        "drawn_64_150_bound": (
            "100 jobs drawn from the trace, 64 devices, load 1.5, three seeds: upper bound",
            "{:.1f} of {drawn_64_150_jobs:.0f}",
        ),
        "drawn_64_150_ours_met_0": (
            "... restarts free: decor and its standard error; the best other",
            "{:.1f} ± {drawn_64_150_ours_se_0:.1f}; {drawn_64_150_best_other_met_0:.1f}",
        ),
        "drawn_64_150_ours_met_03": (
            "... restarts of 0.3 s: decor and its standard error; the best other",
            "{:.1f} ± {drawn_64_150_ours_se_03:.1f}; {drawn_64_150_best_other_met_03:.1f}",
        ),
        "drawn_64_150_ours_met_8": (
            "... restarts of 8 s: decor and its standard error; the best other",
            "{:.1f} ± {drawn_64_150_ours_se_8:.1f}; {drawn_64_150_best_other_met_8:.1f}",
        ),
        "drawn_64_150_ours_met_model": (
            "... restarts by model: decor and its standard error; the best other",
            "{:.1f} ± {drawn_64_150_ours_se_model:.1f}; {drawn_64_150_best_other_met_model:.1f}",
        ),
        "drawn_64_300_bound": (
            "100 jobs drawn from the trace, 64 devices, load 3, three seeds: upper bound",
            "{:.1f} of {drawn_64_300_jobs:.0f}",
        ),
        "drawn_64_300_ours_met_0": (
            "... restarts free: decor and its standard error; the best other",
            "{:.1f} ± {drawn_64_300_ours_se_0:.1f}; {drawn_64_300_best_other_met_0:.1f}",
        ),
        "drawn_64_300_ours_met_03": (
            "... restarts of 0.3 s: decor and its standard error; the best other",
            "{:.1f} ± {drawn_64_300_ours_se_03:.1f}; {drawn_64_300_best_other_met_03:.1f}",
        ),
        "drawn_64_300_ours_met_8": (
            "... restarts of 8 s: decor and its standard error; the best other",
            "{:.1f} ± {drawn_64_300_ours_se_8:.1f}; {drawn_64_300_best_other_met_8:.1f}",
        ),
        "drawn_64_300_ours_met_model": (
            "... restarts by model: decor and its standard error; the best other",
            "{:.1f} ± {drawn_64_300_ours_se_model:.1f}; {drawn_64_300_best_other_met_model:.1f}",
        ),
        "drawn_256_300_bound": (
            "200 jobs drawn from the trace, 256 devices, load 3, three seeds: upper bound",
            "{:.1f} of {drawn_256_300_jobs:.0f}",
        ),
        "drawn_256_300_ours_met_0": (
            "... restarts free: decor and its standard error; the best other",
            "{:.1f} ± {drawn_256_300_ours_se_0:.1f}; {drawn_256_300_best_other_met_0:.1f}",
        ),
        "drawn_256_300_ours_met_03": (
            "... restarts of 0.3 s: decor and its standard error; the best other",
            "{:.1f} ± {drawn_256_300_ours_se_03:.1f}; {drawn_256_300_best_other_met_03:.1f}",
        ),
        "drawn_256_300_ours_met_8": (
            "... restarts of 8 s: decor and its standard error; the best other",
            "{:.1f} ± {drawn_256_300_ours_se_8:.1f}; {drawn_256_300_best_other_met_8:.1f}",
        ),
        "drawn_256_300_ours_met_model": (
            "... restarts by model: decor and its standard error; the best other",
            "{:.1f} ± {drawn_256_300_ours_se_model:.1f}; {drawn_256_300_best_other_met_model:.1f}",
        ),
    },
    "spot": {
        "gap_closed_ours": (
            "Gap closed between on-demand alone and the optimum, A100 market, launches counted: semi-markov",
            "{:.1f} %",
        ),
        "gap_closed_ahap_last": ("... ahap with the last value as its forecast", "{:.1f} %"),
        "gap_closed_ours_binary": ("... on all-or-nothing markets: semi-markov", "{:.1f} %"),
        "gap_closed_msu_binary": ("... on all-or-nothing markets: max-spot", "{:.1f} %"),
        "ours_over_msu_se": (
            "Utility of semi-markov over guarded max-spot, in standard errors: least of all markets",
            "{:+.1f}",
        ),
        "ours_over_ahap_se": ("... over AHAP, the best of three", "{:+.1f}"),
        "soft_cost_saved": (
            "Cost that a soft deadline saves where an interval late costs a twelfth of all on-demand nodes in it",
            "{:.1f} %",
        ),
        "soft_intervals_late": ("... intervals late, of a deadline of 10", "{:.2f}"),
        "soft_gained": ("... value less cost above that of the hard deadline, of its cost", "{:+.1f} %"),
        "soft_gained_least_se": ("... the same in standard errors: least of all markets", "{:+.1f}"),
        "guarded_misses": ("Jobs late that could have been on time", "{:.0f}"),
        "selector_shortfall_ratio": (
            "Selector after 500 jobs: shortfall from the best policy, relative to the mean policy",
            "{:.3f}",
        ),
        "selector_printed_shortfall_ratio": ("... with the paper's step", "{:.3f}"),
        **{
            f"ahap_{mode}_over_{other.lower()}": (
                f"Utility of AHAP {words} above {other} (the paper: {claimed} %; with value 120 and grace 1.5)",
                "{:+.1f} %",
            )
            for mode, words in (
                ("printed", "as printed but for trimmed last intervals, without the safety net,"),
                ("repaired", "repaired, with it,"),
            )
            for other, claimed in (("OD", "+49.0"), ("MSU", "+54.8"), ("UP", "+33.4"), ("AHANP", "+23.2"))
        },
        "pool_112x1000_s": ("The 112 repaired policies of the paper on 1,000 jobs, one core", "{:.3g} s"),
        "pool_alone_ratio": ("The same with separate tables for each policy (50 jobs), as a multiple", "{:.0f}"),
    },
    "spot_first_jobs": {
        "uniform": ("Mean normalised utility of the first ten jobs, if the selector draws evenly at first", "{:.4f}"),
        **{
            f"{name}{end}": (f"{words}{of}", form)
            for name, words in FIRST_JOBS.items()
            for end, of, form in (("_gain", "", "{:+.4f}"), ("_gain_se", ": standard error", "{:.4f}"))
        },
        "plans_gain": (
            "All jobs under semi-markov: what it is worth that their plans know the past of the market",
            "{:+.4f} ± {plans_gain_se:.4f}",
        ),
    },
    "spot_events": {
        f"{market}_{hours}_{name}": (
            words.format(where=f"{where}, {hours} h for 24 h of work"),
            form.replace("NAME", f"{market}_{hours}"),
        )
        for hours in (26, 35)
        for market, where in EVENTS.items()
        for name, words, form in (
            ("intervals", "Cost over on-demand, {where}: decided in intervals", "{:.3f}"),
            ("events", "... on events within them too", "{:.3f}"),
            ("events_less", "... less the first", "{:+.3f} ± {NAME_events_less_se:.3f}"),
            ("short", "... in intervals as short as quotes are apart", "{:.3f}"),
            ("late", "... late jobs, all three", "{:.0f}"),
            (
                "moves_intervals",
                "... starts on other nodes: in intervals; on events",
                "{:.1f}; {NAME_moves_events:.1f}",
            ),
        )
    },
    "late": {
        **{
            f"{short}_{hours}": (f"Cost over on-demand, deadline {hours} h, a launch takes 0.2 h: {name}", "{:.3f}")
            for short, name in LATE.items()
            for hours in (52, 70, 92)
        },
        "ours_minus_up_52_se": ("Ours less the better form of Uniform Progress at 52 h, in standard errors", "{:+.1f}"),
        "ours_minus_up_70_se": ("... at 70 h", "{:+.1f}"),
        "points_above_up": (
            "Points (set, launch, deadline) at which ours costs more than a form of it",
            "{:.0f} of {points:.0f}",
        ),
        "late_jobs": ("Late jobs under ours, all deadlines and start-up times", "{:.0f}"),
        "recorded_jobs": ("Jobs played in recordings of AWS (0: in seeded markets)", "{:,.0f}"),
    },
    "zones": {
        **{
            f"{short}_{hours}": (f"Cost over on-demand, deadline {hours} h, a launch takes 0.2 h: {name}", "{:.3f}")
            for hours in (52, 70, 92)
            for short, name in ZONES.items()
        },
        **{
            f"all_minus_{short}_{hours}": (
                f"All zones less {ZONES[short]}, {hours} h",
                f"{{:+.3f}} ± {{all_minus_{short}_se_{hours}:.3f}}",
            )
            for hours in (52, 70, 92)
            for short in ("best", "own_best", "free")
        },
        **{
            f"{short}_moves_{hours}": (
                f"Moves of a job, {hours} h: {ZONES[short]}; egress over the cost on demand",
                f"{{:.1f}}; {{{short}_egress_{hours}:.4f}}",
            )
            for hours in (52, 70, 92)
            for short in ("three", "all")
        },
        "late_jobs": ("Late jobs, all plans", "{:.0f}"),
        "recorded_jobs": ("Jobs played in recordings of AWS (0: in seeded markets)", "{:,.0f}"),
    },
    "loss_targets": {
        **{
            name: (words, form)
            for place, market in (("a100", "A100 market"), ("aws", "zones of AWS"))
            for hours in (18, 24, 36)
            for end in (f"{place}_{hours}",)
            for name, words, form in (
                (
                    f"ours_{end}",
                    f"12 h of work in {hours} h, {market}: cost over on-demand, planned with the forecast (95 %); late",
                    f"{{:.3f}}; {{ours_late_{end}:.0f}}",
                ),
                *(
                    (
                        f"{short}_less_ours_{end}",
                        f"... planned with {what}: less that; late",
                        f"{{:+.3f}} ± {{{short}_less_ours_se_{end}:.3f}}; {{{short}_late_{end}:.0f}}",
                    )
                    for short, what in LOSS_TARGETS.items()
                ),
            )
        },
        "jobs": ("Jobs", "{:.0f}"),
    },
    "placement": {
        **{
            f"{what}_one_period_{name}": (f"{words}: {label}", form.replace("NAME", name))
            for name, words in EDGE_PRICES.items()
            for what, label, form in PLANS
        },
        "solve_s_a": ("Time to plan 400 jobs to a gap of 0.1 %, one core", "{:.2g} s"),
        "solve_s_4000": ("Time to plan 4,000 jobs to a gap of 0.1 %, one core", "{:.2g} s"),
        "aggregation_bound_edge": (
            "Edge at 0.8: 50 cores of each node aggregate weights, instead of 6,000: tasks at the edge by day; cost",
            "{:.0f} instead of {aggregation_free_edge:.0f}; "
            "{aggregation_bound_cost:.1f} instead of {aggregation_free_cost:.1f}",
        ),
        **{
            f"surge_served_{how}_{name}": (
                f"{words}: a fifth more by day, {what}",
                f"{{:.1f}} % served, {{surge_moves_{how}_{name}:.0f}} moves, cost {{surge_cost_{how}_{name}:.1f}} "
                f"for an accuracy of {{surge_accuracy_{how}_{name}:.4f}}, {{surge_s_{how}_{name}:.2g}} s",
            )
            for name, words in EDGE_PRICES.items()
            for how, what in REACTIONS.items()
        },
        **{
            f"thousand_s_{how}": (
                f"1,000 tasks that all differ, a fifth more: {words}",
                f"{{:.2g}} s, {{thousand_short_{how}:.0f}} tasks short of demand, cost {{thousand_cost_{how}:.1f}}",
            )
            for how, words in (
                ("heuristic", "the paper's heuristic"),
                ("core", "planned anew, the core of the program (the default)"),
                ("all", "planned anew, all of the program"),
            )
        },
        "day_served_heuristic_persistence_1": (
            "Edge at 0.8 of the cloud's price: a day with surges, served; cost: the paper's heuristic, the last value",
            "{:.2f} %; {day_cost_heuristic_persistence_1:.1f} (as planned: {day_served:.2f} %; {day_cost:.1f})",
        ),
        "day_served_replan_persistence_1": (
            "... the period planned anew, moves weighed, the last value",
            "{:.2f} %; {day_cost_replan_persistence_1:.1f}",
        ),
        **{
            f"day_served_replan_{forecast}_1": (
                f"... the same, {words} 1, 2 and 3 steps ahead",
                "; ".join(
                    f"{{day_served_replan_{forecast}_{k}:.2f}} % at {{day_cost_replan_{forecast}_{k}:.1f}}"
                    for k in (1, 2, 3)
                ),
            )
            for forecast, words in (("trend", "a line through four steps"), ("perfect", "perfect forecasts"))
        },
        **{
            f"{series}_{predictor}_1": (
                f"Error 1, 2 and 3 steps ahead as a multiple of that of the last value, {words}: {predictor}",
                f"{{:.2f}}; {{{series}_{predictor}_2:.2f}}; {{{series}_{predictor}_3:.2f}}",
            )
            for series, words in ARRIVALS.items()
            for predictor in ("autoregression", "trend")
        },
    },
}


class Quoted(NamedTuple):
    """A row of the README's table: the figures of a benchmark, their label and their format."""

    benchmark: str
    figures: tuple[str, ...]
    label: str
    form: str


MET_LIVE = ("triage_met", "guarded_EDF_met", "all_at_once_met", "one_after_another_met", "triage_ceiling")
QUOTED = (
    Quoted(
        "overhead",
        ("paid_us", "paid_pool_us"),
        "What a user pays a batch of .6 ms, above an empty callback: scheduler in the process; in a pool",
        "{:.0f} µs; {:.0f} µs",
    ),
    Quoted(
        "shares",
        ("worst_share_error",),
        "Worst error of a share over any 10 s, three jobs on one device",
        "{:.2g} of the share",
    ),
    Quoted(
        "decide",
        ("ours_ms_10000",),
        "A round of the scheduler over 10,000 jobs, all changed, under `triage`",
        "{:.0f} ms",
    ),
    Quoted(
        "paper_tables",
        (
            *(f"{name}_{what}" for name in ("ten", "ten_on_two") for what in MET_LIVE),
            "ten_triage_seeds",
        ),
        "Ten trainings live, on one device and on two: met by `triage`; `guarded_edf`; all at once; one after another",
        "{:.1f}; {:.1f}; {:.1f}; {:.1f} of {:.1f}, and {:.1f}; {:.1f}; {:.1f}; {:.1f} of {:.1f} (mean of {:.0f} seeds)",
    ),
    Quoted(
        "late",
        ("ours_52", "up_code_52", "optimum_52"),
        "One node, 48 h of work in 52 h: cost over on-demand; Uniform Progress; the optimum in hindsight",
        "{:.2f}; {:.2f}; {:.2f}",
    ),
)
