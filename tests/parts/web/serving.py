"""A page that is served on a port of this machine."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import uvicorn

from lightning_core.parts.web.web_server import listen
from tests.parts.web.pages import Page, page_of
from tests.waiting import until


@contextmanager
def served(folder: Path, *, allow_submit: bool = False) -> Iterator[tuple[Page, str]]:
    """Serve the page of a new pool; give it and its address."""
    listener = listen("127.0.0.1", 0)
    host = f"127.0.0.1:{listener.getsockname()[1]}"
    with page_of(folder, host=host, allow_submit=allow_submit) as page:
        config = uvicorn.Config(page.web_app.starlette, log_level="error", timeout_graceful_shutdown=1)
        server = uvicorn.Server(config)
        thread = threading.Thread(target=server.run, args=([listener],))
        thread.start()
        until(lambda: server.started)
        try:
            yield page, f"http://{host}"
        finally:
            server.should_exit = True
            thread.join()
