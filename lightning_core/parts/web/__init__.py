"""The web page of a pool, its API over HTTP, and its metrics.

The command ``serve`` watches a pool, shows it in browsers and lets users steer it; ``up --serve`` keeps the page beside
a pool. In :mod:`.pages` is what is shown, as HTML, in :mod:`.api` the same as JSON for programs.
"""

from __future__ import annotations

from lightning_core.core.parts import Companion, Part, later

part = Part(
    commands=later("lightning_core.parts.web.serve_command", "add_commands"),
    companions={
        "serve": Companion(
            later("lightning_core.parts.web.page_process", "start_page"),
            later("lightning_core.parts.web.page_process", "end_page"),
            later("lightning_core.parts.web.page_process", "read_port"),
            help="also serve the pool as a page in a browser, until `down`, as `serve` does",
            metavar="PORT",
        )
    },
)
"""What ``lightning_core`` registers as the part ``web``."""
