"""``lightning-core serve``: the pool as a page in a browser."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable

from lightning_core.bundle.problems import require
from lightning_core.cli.arguments import add_pool, whole_number
from lightning_core.core.durations import format_duration, parse_duration
from lightning_core.parts.web.page_process import MAX_PORT, NEEDS, PORT
from lightning_core.pool import Pool
from lightning_core.scheduler.summary import EXIT_MET

# How long links for others work by default.
READER_TIME = "1d"
# Seconds to wait for a scheduler that does not answer, before the page says so; it is asked again and again.
PATIENCE = 1.0


def add_commands(command: Callable[..., argparse.ArgumentParser]) -> None:
    """Add the command ``serve``."""
    serve = command("serve", _serve, "serve the pool as a page in a browser: watch its jobs, and steer them")
    serve.add_argument("--port", type=whole_number(0, MAX_PORT), default=PORT, metavar="N",
                       help=f"port to listen on (default {PORT}; 0 for any that is free)")  # fmt: skip
    listen = "address to listen on (default 127.0.0.1, which only this machine reaches)"
    serve.add_argument("--listen", default="127.0.0.1", metavar="ADDRESS", help=listen)
    names = "further name under which users reach the page, such as that of a proxy; may be repeated"
    serve.add_argument("--host-name", action="append", default=[], metavar="NAME", help=names)
    https = "users reach it by https, through a proxy that ends TLS"
    serve.add_argument("--https", action="store_true", help=https)
    readers = "also print this many links for other users, who may see everything and change nothing"
    serve.add_argument("--read-only-links", type=whole_number(0, 50), default=0, metavar="N", help=readers)
    seconds = f"how long these links work (default {READER_TIME})"
    serve.add_argument("--for", dest="reader_time", default=READER_TIME, metavar="TIME", help=seconds)
    submit = "let those with the right `submit` submit bundles, which are code that runs as the pool's account"
    serve.add_argument("--allow-submit", action="store_true", help=submit)
    add_pool(serve)
    serve.set_defaults(acts=True)


def _serve(arguments: argparse.Namespace) -> int:
    require(*NEEDS, extra="serve")
    from lightning_core.parts.web.web_server import listen, serve

    seconds = parse_duration(arguments.reader_time)
    with Pool.connect(arguments.pool, patience=PATIENCE) as pool:
        listener = listen(arguments.listen, arguments.port)

        def ready(own: str, others: list[str]) -> None:
            print(f"{pool.describe()} is served; open, once and within an hour:\n  {own}", flush=True)
            for link in others:
                print(f"read-only, for {format_duration(seconds)}:\n  {link}", flush=True)
            if not arguments.listen.startswith("127.") and arguments.listen != "::1" and not arguments.https:
                print("note: network traffic is not encrypted: put a proxy with TLS before it, or use "
                      "`ssh -L` and the default address", file=sys.stderr, flush=True)  # fmt: skip

        serve(pool, listener, arguments.host_name, https=arguments.https, readers=arguments.read_only_links,
              reader_seconds=seconds, allow_submit=arguments.allow_submit, ready=ready)  # fmt: skip
    return EXIT_MET
