"""What the papers say of estimators, beside our figures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from benchmarks.papers.finding import NO, YES, Finding, verdict
from benchmarks.papers.printed import PRINTED_ROWS
from benchmarks.papers.record import Record

# Parts seen of LaiRA's figure 3, in per cent, and those at which data are scarce.
PARTS, SCARCE = (1, 2, 5, 10, 20), (1, 2, 5)
# The one-pass estimators of that figure, by the names of our figures; the dynamic filter is the one that is printed.
ONE_PASS = {"dkf_undamped": "DKF", "least_squares": "LS", "weighted": "WLS", "kalman": "KF"}
# The estimators of LARA's figure 5.
NEEDED = {
    "weighted": "WLS",
    "least_squares": "LS",
    "m4": "M4",
    "engression": "Engression",
    "engression_of_logs": "Engression of logarithms",
}


def findings(record: Record) -> list[Finding]:
    """Return all findings.

    Raises:
        MissingFigureError: If a figure was not measured.
    """
    pure = '"DKF consistently outperforms other methods" (LS, WLS, KF)'
    mixed = '"A similar trend", "with DKF leading under data-scarce conditions"'
    return [
        _dkf_leads(record, pure, "pure", "LaiRA, fig. 3(a)", PARTS),
        _dkf_leads(record, mixed, "mixed", "LaiRA, fig. 3(b)", SCARCE),
        _late(record),
        _cost_of_dkf(record),
        _damping(record),
        _wls_on_pure(record),
        _engression_on_mixed(record),
        _cost_of_wls(record),
    ]


def _dkf_leads(record: Record, says: str, kind: str, where: str, parts: Sequence[int]) -> Finding:
    told, holds = [], []
    for part in parts:
        errors = {name: record("extrapolation", f"{name}_error_{kind}_{part}") for name in ONE_PASS}
        best = min(errors, key=lambda name: errors[name])
        other = "" if best == "dkf_undamped" else f" ({ONE_PASS[best]} {errors[best]:.2f})"
        told.append(f"{part} %: {errors['dkf_undamped']:.2f}{other}")
        holds.append(best == "dkf_undamped")
    measured = f"{kind}, median error of DKF as printed and, where it is another, of the best, by part seen: "
    said = verdict(holds, [str(part) for part in parts]).replace("only", "only at")
    return Finding(says, where, measured + ", ".join(told), f"{said} % seen" if "only" in said else said)


def _late(record: Record) -> Finding:
    errors = {name: record("extrapolation", f"{name}_error_pure_20") for name in ONE_PASS}
    told = ", ".join(f"{title} {errors[name]:.2f}" for name, title in ONE_PASS.items())
    holds = max(errors["dkf_undamped"], errors["weighted"]) < min(errors["least_squares"], errors["kalman"])
    says = "From 20 % on WLS performs well, and DKF and WLS outperform LS and KF"
    return Finding(says, "LaiRA, fig. 3(a)", f"pure, 20 % seen: {told}", YES if holds else NO)


def _cost_of_dkf(record: Record) -> Finding:
    one, many = (record("extrapolation", f"dkf_vs_one_pass{rows}") for rows in ("", "_1000"))
    offline = record("extrapolation", "lara_m4_s") * 1e6 / record("extrapolation", "dkf_us_loss")
    says = "DKF takes about 8 times as long as the other one-pass estimators, and M4 800 times as long as DKF"
    measured = (
        f"{one:.1f} times as long for one job, {many:.1f} times for a thousand at once; M4, in our implementation, "
        f"{offline:.0f} times as long as DKF"
    )
    factors = "the factors are smaller" if one < 8 and many < 8 and offline < 800 else "the factors are others"
    found = f"the order replicates, {factors}" if min(one, many, offline) > 1 else NO
    return Finding(says, "LaiRA, fig. 3(c)", measured, found)


def _damping(record: Record) -> Finding:
    cases = [(kind, part) for kind in ("pure", "mixed") for part in PARTS]
    nearer = sum(
        record("extrapolation", f"dkf_error_{kind}_{part}")
        < record("extrapolation", f"dkf_undamped_error_{kind}_{part}")
        for kind, part in cases
    )
    printed, damped = (record("extrapolation", f"{name}_work") for name in ("dkf_undamped", "dkf"))
    change, doubt = (record("core", f"papers_change{end}_{PRINTED_ROWS['LaiRA']}") for end in ("", "_se"))
    measured = (
        f"damped, the loss ahead is nearer at {nearer} of {len(cases)} parts seen, pure and mixed; median "
        f"\\|ln(forecast / truth)\\| of the work left {damped:.2f} damped, {printed:.2f} as printed; as printed "
        f"{change:+.3f} ± {doubt:.3f} of the ceiling is met"
    )
    holds = [2 * nearer <= len(cases), printed <= damped]
    said = verdict(holds, ["for the loss ahead", "for the work left"])
    return Finding("The drift of the line goes on for all the time that is left", "LaiRA, eq. 8", measured, said)


def _means(record: Record, kind: str) -> tuple[Mapping[str, float], str]:
    errors = {name: record("extrapolation", f"lara_{name}_data_mean_{kind}") for name in NEEDED}
    told = ", ".join(f"{title} {errors[name]:.2f}" for name, title in NEEDED.items())
    return errors, f"{kind}, mean error of the data needed: {told}"


def _wls_on_pure(record: Record) -> Finding:
    errors, measured = _means(record, "pure")
    holds = [
        errors["weighted"] < errors["m4"],
        errors["weighted"] < min(errors["engression"], errors["engression_of_logs"]),
        errors["least_squares"] == max(errors.values()),
    ]
    said = verdict(holds, ["against M4", "against Engression", "for LS"])
    return Finding(
        "WLS has a lower error than M4 and Engression, LS the highest", "LARA, 4.4, fig. 5(a)", measured, said
    )


def _engression_on_mixed(record: Record) -> Finding:
    errors, measured = _means(record, "mixed")
    best = min(errors, key=lambda name: errors[name])
    holds = [
        errors["weighted"] < errors["least_squares"],
        errors["m4"] < errors["weighted"],
        best.startswith("engression"),
    ]
    reading = "logarithms" if best == "engression_of_logs" else "losses"
    said = verdict(holds, ["for WLS against LS", "for M4 against WLS", f"for Engression, fitted to {reading}"])
    says = "WLS is better than LS, M4 and Engression slightly better than WLS; Engression is best"
    return Finding(says, "LARA, 4.4, fig. 5(b)", measured, said)


def _cost_of_wls(record: Record) -> Finding:
    wls, m4, engression = (record("extrapolation", f"lara_{name}_s") for name in ("weighted", "m4", "engression"))
    measured = f"a forecast takes WLS {1e6 * wls:.0f} µs, M4 {1e3 * m4:.1f} ms, Engression {engression:.2f} s"
    says = "WLS takes significantly less time than M4 and Engression"
    return Finding(says, "LARA, 4.4, fig. 5(c)", measured, YES if 10 * wls < min(m4, engression) else NO)
