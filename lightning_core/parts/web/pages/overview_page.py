"""The first page: the jobs that train now and why, and their forecasts."""

from __future__ import annotations

from typing import Any

from lightning_core.core.parts import lines_of
from lightning_core.parts.web.pool_watch import PoolSnapshot
from lightning_core.server.access.people import Person, Right
from lightning_core.server.discovery import kind_of
from lightning_core.view.silence import silence_line
from lightning_core.view.text import clean


def describe(view: PoolSnapshot, person: Person) -> dict[str, Any]:
    """Return the part of the page about the pool itself, for a user."""
    about = view.about
    settings = about.get("settings", {})
    found: dict[str, Any] = {
        "person": person.name,
        "policy": settings.get("policy", ""),
        "devices": [clean(name) for name in about.get("devices", ())] or settings.get("devices", 0),
        "kinds": [clean(kind) for kind in kinds] if len({*(kinds := about.get("kinds", ()))}) > 1 else [],
        "unavailable": [
            {"device": one["device"], "why": clean(one["why"]) if person.may(Right.SEE) else ""}
            for one in about.get("unavailable", ())
        ],
        "silence": silence_line(about["manager_silent"]) if about.get("manager_silent") else "",
        "kind": kind_of(about) if about else "cpu",
    }
    if person.may(Right.SEE):
        said = about.get("controllers", {})
        found["lines"] = [clean(line) for name, one in said.items() for line in lines_of(name, one)]
    return found


def body(state: str) -> str:
    """Return the content of the page.

    Args:
        state: All that it shows at first, as JSON.
    """
    return (
        '<h1 class="quiet">Jobs</h1><p id="trouble" class="trouble" role="alert" hidden></p>'
        '<dl class="tiles" id="tiles"></dl>'
        '<section aria-label="Devices"><div id="devices" class="devices"></div></section>'
        '<div class="tools" role="search"><label class="field">Search <input id="search" type="search" '
        'placeholder="name, owner, reason" autocomplete="off"></label>'
        '<fieldset class="chips" id="chips"><legend class="quiet">Outcome</legend></fieldset>'
        '<label class="field">Order <select id="order"><option value="urgent">urgent first</option>'
        "<option value=deadline>deadline</option><option value=spare>time to spare</option>"
        "<option value=newest>newest</option><option value=name>name</option><option value=share>share</option>"
        '</select></label><span id="count" class="soft" role="status"></span></div>'
        '<fieldset class="groups" id="groups" hidden><legend class="quiet">Groups</legend>'
        '<p id="earlier" class="soft" hidden></p></fieldset>'
        '<div class="panel flush"><table class="jobs" id="jobs"><caption class="quiet">Jobs of the pool</caption>'
        '<thead><tr><th scope="col">job</th><th scope="col">outcome</th><th scope="col">to the deadline</th>'
        '<th scope="col">value</th><th scope="col">share</th><th scope="col">deadline</th><th scope="col">why</th></tr>'
        '</thead><tbody></tbody></table></div><p><button id="more" class="plain" hidden></button></p>'
        "<noscript><p>This page needs JavaScript; <code>lightning-core status</code> shows the same in a terminal.</p>"
        "</noscript>"
        f'<script type="application/json" id="state">{in_script(state)}</script>'
    )


def in_script(text: str) -> str:
    """Return JSON that cannot end the element of a page in which it stands.

    Example::

        >>> in_script('{"name":"</script><b>"}')
        '{"name":"\\\\u003c/script\\\\u003e\\\\u003cb\\\\u003e"}'
    """
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")
