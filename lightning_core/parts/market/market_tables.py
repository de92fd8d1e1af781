"""Tables of a pool on a market, for its report and its page: the cost of each job, and the offers."""

from __future__ import annotations

from collections.abc import Sequence

from lightning_core.core.durations import format_duration
from lightning_core.history.history import History
from lightning_core.parts.market.market_history import MarketHistory, Money, Quote
from lightning_core.report.job_card import shortened
from lightning_core.report.svg import escape

# Jobs that have a row of their own: those that cost most. The others are together in one.
MAX_JOBS = 100
# Maximum characters that fit beside other numbers on a phone.
MAX_NUMBER = 8

_ABOUT_MONEY = (
    "The journal has which nodes were billed and how many devices each job held, but not on which node it trained:"
    " each second of the nodes that are up is split over the devices that jobs held. Beside the jobs are nodes that"
    " start, that stand beside their replacements, and that leave. The future cost of a job is not in the"
    " journal: <code>lightning-core market plan --job DIR NAME --deadline INTERVALS</code> plans it."
)


def table(names: Sequence[str], rows: Sequence[Sequence[str]], last: Sequence[Sequence[str]] = ()) -> str:
    """Return a table, whose numbers stand side by side below the name of the row where it is narrow.

    Args:
        names: Heads of the columns.
        rows: Cells of each row, as text.
        last: Rows of its foot, of all rows together.
    """

    def row(values: Sequence[str]) -> str:
        cells = ""
        for name, value in zip(names, values, strict=True):
            kind = ' class="long"' if len(value) > MAX_NUMBER else ""
            cells += f'<td{kind} data-label="{name}">{shortened(value)}</td>'
        return f"<tr>{cells}</tr>"

    head = "".join(f'<th scope="col">{name}</th>' for name in names)
    foot = f"<tfoot>{''.join(map(row, last))}</tfoot>" if last else ""
    body = "".join(map(row, rows))
    return f'<table class="stack numbers"><thead><tr>{head}</tr></thead><tbody>{body}</tbody>{foot}</table>'


def money_by_job(history: History) -> str:
    """Return the cost until now of each job of a pool on a market, and of no job; empty without a market."""
    market: MarketHistory | None = history.parts.get("market")
    if market is None:
        return ""
    if not market.all:
        return '<p class="soft">Nothing has been paid yet.</p>'
    paid = sorted(market.jobs.items(), key=lambda pair: -pair[1].all)
    rows = [_row(history.label(job), money, market) for job, money in paid[:MAX_JOBS]]
    if others := [money for _, money in paid[MAX_JOBS:]]:
        together = Money(sum(money.spot for money in others), sum(money.on_demand for money in others))
        rows.append(_row(f"{len(others):,} other jobs", together, market))
    rows.append(_row("beside the jobs", market.overlap, market))
    for name, money in (("minimum charges", market.minimum_charges), ("moves to other regions", market.moves)):
        if money:
            rows.append([name, "-", "-", f"{money:.4g}", _part(money, market)])
    of_nodes = [*market.jobs.values(), market.overlap]
    spot, on_demand = sum(money.spot for money in of_nodes), sum(money.on_demand for money in of_nodes)
    total = ["all", f"{spot:.4g}", f"{on_demand:.4g}", f"{market.all:.4g}", "100 %"]
    names = ("job", "spot", "on demand", "paid", "of all")
    progress = f" {market.in_progress:.4g} of it is of the interval in progress." if market.in_progress else ""
    return f'{table(names, rows, [total])}<p class="soft">{_ABOUT_MONEY}{escape(progress)}</p>'


def offers(history: History, now: float) -> str:
    """Return the newest quote of each offer of a market; empty on no market.

    Args:
        history: History of the pool.
        now: Scheduler time from which the age of a quote is counted.
    """
    market: MarketHistory | None = history.parts.get("market")
    if market is None:
        return ""
    if not market.quotes:
        return '<p class="soft">Nothing has been quoted yet.</p>'
    has_types = any(quote.offer.type for quote in market.quotes.values())
    has_throughput = any(quote.offer.throughput != 1.0 for quote in market.quotes.values())
    names = ["zone", *(["type"] if has_types else []), "spot price", "on offer", "on demand",
             *(["throughput"] if has_throughput else []), "last change"]  # fmt: skip
    found = []
    for name, quote in sorted(market.quotes.items(), key=lambda pair: (pair[1].offer.zone, pair[1].offer.type)):
        offer = quote.offer
        found.append([
            offer.zone if name else "any", *([offer.type or "-"] if has_types else []),
            f"{offer.price:.4g}" if quote.stands else "no longer quoted",
            f"{offer.available:,}" if quote.stands else "-", f"{offer.on_demand:.4g}",
            *([f"{offer.throughput:g}"] if has_throughput else []), _change(quote, now),
        ])  # fmt: skip
    return f'{table(names, found)}<p class="soft">Prices of a node are for an interval.</p>'


def _row(name: str, money: Money, market: MarketHistory) -> list[str]:
    return [name, f"{money.spot:.4g}", f"{money.on_demand:.4g}", f"{money.all:.4g}", _part(money.all, market)]


def _part(money: float, market: MarketHistory) -> str:
    return f"{100 * money / market.all:.1f} %"


def _change(quote: Quote, now: float) -> str:
    ago = f"{format_duration(max(now - quote.since, 0.0))} ago"
    if quote.before is None:
        return f"first quoted {ago}"
    price, available = quote.before
    return f"{ago}; it was {price:.4g}, with {available:,} on offer"
