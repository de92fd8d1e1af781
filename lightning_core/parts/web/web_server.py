"""The server of the page of a pool: a process beside the scheduler, which only this machine reaches by default."""

from __future__ import annotations

import contextlib
import ipaddress
import os
import socket
from collections.abc import Callable, Collection, Sequence

import uvicorn

from lightning_core.parts.web.pool_watch import PoolWatch
from lightning_core.parts.web.visitors import Visitors, account, reader
from lightning_core.parts.web.web_app import WebApp
from lightning_core.pool.local_files import is_there
from lightning_core.pool.pool import Pool
from lightning_core.pool.pool_errors import NotOnThisMachineError
from lightning_core.server.access.accounts import account_of
from lightning_core.server.access.authenticators import Authenticators

# Connections and seconds of an idle one; seconds that open pages have to end when the server ends.
MAX_CONNECTIONS, KEEP_ALIVE, SHUTDOWN = 1000, 20, 2


class _Server(uvicorn.Server):
    """A server that calls a function once it is ready."""

    def __init__(self, config: uvicorn.Config, ready: Callable[[], None]) -> None:
        super().__init__(config)
        self._ready = ready

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self.started:
            self._ready()


def listen(address: str, port: int) -> socket.socket:
    """Return a socket that listens.

    Args:
        address: IP address of this machine.
        port: Number of the port; 0 for any that is free.

    Raises:
        ValueError: If the address is none, or the port is taken.
    """
    try:
        family = socket.AF_INET6 if ipaddress.ip_address(address).version == 6 else socket.AF_INET
    except ValueError:
        raise ValueError(f"--listen must be an IP address of this machine, got {address!r}") from None
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((address, port))
    except OSError as error:
        listener.close()
        raise ValueError(
            f"{address}, port {port}: {error.strerror or error}; name another port with --port, or 0 for any"
        ) from None
    return listener


def hosts_of(address: str, port: int, names: Collection[str]) -> list[str]:
    """Return the hosts under which a page is served: those that a browser sends for it.

    Args:
        address: Address on which it listens.
        port: Its port.
        names: Further names, each with or without a port.

    Example::

        >>> hosts_of("127.0.0.1", 8710, ["pool.example.org"])
        ['127.0.0.1:8710', 'localhost:8710', 'pool.example.org', 'pool.example.org:8710']
    """
    found = []
    ip = ipaddress.ip_address(address)
    if not ip.is_unspecified:
        found.append(f"[{address}]:{port}" if ip.version == 6 else f"{address}:{port}")
    if ip.is_loopback or ip.is_unspecified:
        found += [host for host in ("localhost", "127.0.0.1") if f"{host}:{port}" not in found]
        found = [host if ":" in host else f"{host}:{port}" for host in found]
    for name in names:
        found += [name] if ":" in name.rpartition("]")[2] else [name, f"{name}:{port}"]
    return found


def origin_of(hosts: Sequence[str], names: Sequence[str], *, https: bool) -> str:
    """Return the origin of the links that are printed: a proxy that ends TLS is reached by its own name and port.

    Args:
        hosts: Hosts under which the page is served.
        names: Those that were given.
        https: Whether users reach it by https, through a proxy.

    Example::

        >>> hosts = hosts_of("127.0.0.1", 8710, ["pool.example.org"])
        >>> origin_of(hosts, ["pool.example.org"], https=True), origin_of(hosts, ["pool.example.org"], https=False)
        ('https://pool.example.org', 'http://127.0.0.1:8710')
    """
    return f"https://{[*names, *hosts][0]}" if https else f"http://{hosts[0]}"


def serve(
    pool: Pool,
    listener: socket.socket,
    names: Collection[str],
    *,
    https: bool = False,
    readers: int = 0,
    reader_seconds: float = 86400.0,
    allow_submit: bool = False,
    ready: Callable[[str, list[str]], None] = lambda *_: None,
) -> None:
    """Serve the page of a pool until a signal ends the process.

    Args:
        pool: The pool.
        listener: Socket that listens.
        names: Further hosts under which users reach it.
        https: Whether users reach it by https, through a proxy.
        readers: Number of links for others, by which they may see and not act.
        reader_seconds: Seconds for which these work.
        allow_submit: Whether those with the right to may submit bundles, which are code.
        ready: Called with the link that works once, and those for others, when pages can be opened.

    Raises:
        ConnectionError: If the pool does not answer.
        NotOnThisMachineError: If the pool's folder is on another machine.
    """
    if not is_there(pool.folder / "journal.db"):
        raise NotOnThisMachineError(f"{pool.folder} is not on this machine; serve the page on the pool's own machine")
    address, port = listener.getsockname()[:2]
    watch = PoolWatch(pool)
    watch.start()
    visitors = Visitors(Authenticators(pool.folder).person)
    hosts = hosts_of(address, port, names)
    cookie = f"lightning_core_{port}"
    web_app = WebApp(pool, watch, visitors, hosts, https=https, cookie=cookie, allow_submit=allow_submit)
    config = uvicorn.Config(
        web_app.starlette, log_level="warning", access_log=False, server_header=False, date_header=False,
        limit_concurrency=MAX_CONNECTIONS, timeout_keep_alive=KEEP_ALIVE, timeout_graceful_shutdown=SHUTDOWN,
        proxy_headers=False, ws="none", lifespan="on",
    )  # fmt: skip
    origin = origin_of(hosts, list(names), https=https)
    server = _Server(config, lambda: ready(*_links(visitors, origin, readers, reader_seconds)))
    with contextlib.suppress(KeyboardInterrupt):
        server.run(sockets=[listener])


def _links(visitors: Visitors, origin: str, readers: int, reader_seconds: float) -> tuple[str, list[str]]:
    base = f"{origin}/enter?key="
    me = account(account_of(os.geteuid()))
    own = base + visitors.link(me)
    return own, [base + visitors.link(reader("reader"), reader_seconds, once=False) for _ in range(readers)]
