"""The stream of changes that an open page reads (server-sent events).

Each page receives the changes since its last update. A page that reads slowly gets fewer, later updates; one that does
not read at all is dropped. Nothing is queued.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any

from lightning_core.core.answers import JobStatus
from lightning_core.parts.web.pool_watch import PoolSnapshot, PoolWatch
from lightning_core.view.group_lines import groups_of

# Seconds between two checks for changes, and seconds after which an update is sent in any case: proxies close silent
# connections, and the page sees that it is still connected.
POLL, KEEP_ALIVE = 0.5, 15.0
# Pages that are open at the same time.
MAX_PAGES = 500

Allowed = Callable[[JobStatus], bool]


async def changes(
    watch: PoolWatch,
    describe: Callable[[PoolSnapshot], Mapping[str, Any]],
    allowed: Allowed,
    is_let_in: Callable[[], bool],
) -> AsyncIterator[str]:
    """Yield all rows, then the changes, as server-sent events; end when the session of the reader ends.

    Args:
        watch: Watcher of the pool.
        describe: Function that returns the part of the page about the pool itself.
        allowed: Whether the reader may see a job.
        is_let_in: Whether the reader's session holds.
    """
    with watch:
        sent, silent, sent_about, trouble = -1, 0.0, -1, ""
        while is_let_in():
            view, text = watch.view, None
            if view.version > sent:
                about = describe(view) if view.about_version != sent_about or sent < 0 else None
                text = update(view, sent, about, allowed, trouble)
                sent, sent_about, trouble = view.version, view.about_version, view.trouble
            if text is None and silent >= KEEP_ALIVE:
                text = f"event: time\ndata: {_json({'now': view.now, 'offset': view.offset})}\n\n"
            if text is not None:
                silent = 0.0
                yield text
            await asyncio.sleep(POLL)
            silent += POLL


def update(
    view: PoolSnapshot, sent: int, about: Mapping[str, Any] | None, allowed: Allowed, trouble: str = ""
) -> str | None:
    """Return an event with the changes since version ``sent``; None if there are none.

    Args:
        view: Snapshot of the pool.
        sent: Number of the change up to which the page is up to date; -1 for a new page.
        about: The part about the pool itself, if it has changed.
        allowed: Whether the reader may see a job.
        trouble: Reason why the pool did not answer, for the page.
    """
    everything = sent < view.complete_from
    rows = [row.text for row in view.rows.values() if (everything or row.version > sent) and allowed(row.status)]
    gone = [] if everything else [key for version, key, job in view.removed if version > sent and allowed(job)]
    if not (everything or rows or gone or about is not None or view.trouble != trouble):
        return None
    body = _state(view, about, allowed) | {"all": everything, "gone": gone}
    return f"event: update\ndata: {_json(body)[:-1]},{_rows(rows)}}}\n\n"


def first_state(view: PoolSnapshot, about: Mapping[str, Any], allowed: Allowed) -> str:
    """Return all that a new page shows, as JSON."""
    rows = [row.text for row in view.rows.values() if allowed(row.status)]
    return f"{_json(_state(view, about, allowed) | {'all': True, 'gone': []})[:-1]},{_rows(rows)}}}"


def _state(view: PoolSnapshot, about: Mapping[str, Any] | None, allowed: Allowed) -> dict[str, Any]:
    groups = [group._asdict() for group in groups_of(filter(allowed, view.statuses()))]
    body: dict[str, Any] = {"version": view.version, "now": view.now, "offset": view.offset, "trouble": view.trouble,
                            "groups": groups}  # fmt: skip
    return body if about is None else body | {"about": about}


def _rows(texts: list[str]) -> str:
    return f'"rows":[{",".join(texts)}]'


def _json(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"), allow_nan=False)
