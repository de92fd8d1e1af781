"""Panels that parts add to reports and to the timeline of a live pool."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from lightning_core.core.parts import Html, all_parts
from lightning_core.history.history import History
from lightning_core.report.svg import escape

# Rows of a table that a part draws.
MAX_ROWS = 100


def panels(history: History) -> str:
    """Return the panels of all parts as HTML."""
    found = (
        (title, drawn(f"the panel of {one.package}", panel, history))
        for one in all_parts()
        for title, panel in one.part.panels.items()
    )
    return "".join(f"<h2>{escape(title)}</h2><div class=panel>{shown}</div>" for title, shown in found if shown)


def drawn(what: str, draw: Callable[[Any], str | Sequence[Sequence[str]]], source: Any) -> str:
    """Return what a part draws as HTML; if it raises, the error.

    Args:
        what: What is drawn, for the error.
        draw: Function of the part. It returns a text, rows of a table with the heading first, or
            :class:`~lightning_core.core.parts.Html`.
        source: Its argument.
    """
    try:
        return _as_html(draw(source))
    except Exception as error:  # code from outside may raise anything
        return f"<p>{escape(f'{what} cannot be drawn: {type(error).__name__}: {error}')}</p>"


def _as_html(said: str | Sequence[Sequence[str]]) -> str:
    if isinstance(said, Html) or not said:
        return str(said or "")
    return f"<p>{escape(said)}</p>" if isinstance(said, str) else as_table(said)


def as_table(rows: Sequence[Sequence[str]]) -> Html:
    """Return rows of text, the heading first, as a table."""
    first, *rest = [[escape(str(cell)) for cell in row] for row in rows]
    heading = "".join(f"<th>{cell}</th>" for cell in first)
    body = "".join(f"<tr>{''.join(f'<td>{cell}</td>' for cell in row)}</tr>" for row in rest[:MAX_ROWS])
    more = f'<p class="soft">And {len(rest) - MAX_ROWS:,} more.</p>' if len(rest) > MAX_ROWS else ""
    return Html(f"<table><thead><tr>{heading}</tr></thead><tbody>{body}</tbody></table>{more}")
