"""The frame of every page: head, navigation, and the files that it loads, all of them its own."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from importlib.resources import files
from typing import NamedTuple

from lightning_core.report.style import STYLE
from lightning_core.report.svg import escape
from lightning_core.server.access.people import Person, Right


class Asset(NamedTuple):
    """A file that pages load."""

    content: bytes
    kind: str


KINDS = {"css": "text/css; charset=utf-8", "js": "text/javascript; charset=utf-8", "svg": "image/svg+xml"}


def read_assets() -> dict[str, Asset]:
    """Return the files that pages load, by name."""
    found = {}
    for path in files("lightning_core.parts.web").joinpath("static").iterdir():
        ending = path.name.rpartition(".")[2]
        if ending in KINDS:
            content = path.read_bytes()
            if path.name == "page.css":  # the report's own style comes first
                content = STYLE.encode() + content
            found[path.name] = Asset(content, KINDS[ending])
    return found


def digest_of(assets: Mapping[str, Asset]) -> str:
    """Return a text that changes with the content of the files: their address has it, so browsers may keep them."""
    digest = hashlib.sha256()
    for name in sorted(assets):
        digest.update(name.encode() + assets[name].content)
    return digest.hexdigest()[:16]


class PageLink(NamedTuple):
    """A page of the navigation."""

    address: str
    words: str
    """Its name, as HTML."""
    right: Right | None = None
    """Right that it takes; None for none."""


class Frame:
    """Puts the content of a page into its frame.

    Args:
        assets: Files that pages load.
        title: Name of the pool.
        pages: Returns the pages of the navigation.
    """

    def __init__(self, assets: Mapping[str, Asset], title: str, pages: Callable[[], Sequence[PageLink]]) -> None:
        self._title, self._pages, self.digest = title, pages, digest_of(assets)

    def page(self, name: str, body: str, person: Person | None, here: str = "", script: str = "") -> str:
        """Return a page.

        Args:
            name: Title of the page.
            body: Its content, as HTML.
            person: The user; None before signing in.
            here: Address of the page, to mark it in the navigation.
            script: Name of its script.
        """
        links = "".join(
            f'<a href="{one.address}"{" aria-current=page" if one.address == here else ""}>{one.words}</a>'
            for one in self._pages()
            if one.right is None or (person is not None and person.may(one.right))
        )
        who = "" if person is None else self._who(person)
        navigation = f"<nav aria-label=Pages>{links}</nav>" if person is not None else ""
        title = escape(f"{name} · {self._title}" if name else self._title)
        loads = f'<script type="module" src="{self.address(script)}"></script>' if script else ""
        return (
            "<!doctype html><html lang=en><head><meta charset=utf-8>"
            '<meta name=viewport content="width=device-width,initial-scale=1"><meta name=color-scheme '
            f'content="light dark"><title>{title}</title>'
            f'<link rel=icon href="{self.address("icon.svg")}"><link rel=stylesheet href="{self.address("page.css")}">'
            f"{loads}</head><body>"
            '<a class="skip" href="#content">Skip to the content</a>'
            f'<header class="top"><a class="mark" href="/">lightning_core</a><span class="pool">{escape(self._title)}'
            f'</span><span id="live" class="live" role="status"></span>{navigation}{who}</header>'
            f'<main id="content" tabindex="-1">{body}</main>'
            '<div id="said" class="said" role="status" aria-live="polite"></div></body></html>'
        )

    def address(self, name: str) -> str:
        """Return the address of a file that pages load; it changes with its content."""
        return f"/static/{self.digest}/{name}"

    def _who(self, person: Person) -> str:
        acts = any(map(person.may, (Right.STEER_OWN, Right.SUBMIT)))
        note = "" if acts else ' <span class="soft">read-only</span>'
        return (
            f'<form class="who" method="post" action="/leave"><span>{escape(person.name)}{note}</span> '
            '<button class="plain">sign out</button></form>'
        )
