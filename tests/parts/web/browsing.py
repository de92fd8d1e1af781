"""A page in a real browser: Debian's Chromium, without a screen."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from playwright.sync_api import Browser, BrowserContext, ConsoleMessage, sync_playwright
from playwright.sync_api import Page as Tab

from lightning_core.server.access.people import Person
from tests.conftest import debian
from tests.parts.web.pages import Page
from tests.parts.web.serving import served


class Browsing:
    """Tabs of a browser, in which the page of a pool is served.

    Attributes:
        page: The page, and the pool behind it.
        troubles: Errors of the page's scripts, and what its policy has refused.
    """

    def __init__(self, page: Page, browser: Browser, base: str) -> None:
        self.page, self.base = page, base
        self.troubles: list[str] = []
        self._browser = browser
        self._contexts: list[BrowserContext] = []

    def enter(self, person: Person, **options: Any) -> Tab:
        """Return a tab in which a person has come in and sees the list of jobs."""
        tab = self.tab(**options)
        tab.goto(f"{self.base}/enter?key={self.page.web_app.visitors.link(person)}")
        tab.wait_for_url(f"{self.base}/")
        return tab

    def tab(self, **options: Any) -> Tab:
        """Return a tab in which no person has come in.

        Args:
            options: Of the browser, such as ``color_scheme``.
        """
        context = self._browser.new_context(**options)
        self._contexts.append(context)
        tab = context.new_page()
        tab.set_default_timeout(60_000)
        tab.on("console", self._note)
        tab.on("pageerror", lambda error: self.troubles.append(str(error)))
        tab.on("dialog", lambda dialog: self.troubles.append(f"a script of a stranger says {dialog.message}"))
        return tab

    def close_tabs(self) -> None:
        for context in self._contexts:
            context.close()
        self._contexts.clear()

    def _note(self, message: ConsoleMessage) -> None:
        if message.type == "error" and not message.text.startswith("Failed to load"):  # what was refused, on purpose
            self.troubles.append(message.text)


@contextmanager
def browsing(folder: Path) -> Iterator[Browsing]:
    """Serve the page of a new pool to a browser."""
    chromium = debian("chromium")
    with served(folder) as (page, url), sync_playwright() as playwright:
        # Of another account than root it would not need --no-sandbox; what it opens is our own page.
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        found = Browsing(page, browser, url)
        try:
            yield found
        finally:
            found.close_tabs()
            browser.close()
