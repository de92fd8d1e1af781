"""The frame of every web page: one file, which loads and runs nothing.

A content security policy forbids scripts and addresses. All text from outside is escaped
(:func:`lightning_core.report.svg.escape`).
"""

from __future__ import annotations

from pathlib import Path

from lightning_core.report.style import STYLE
from lightning_core.report.svg import escape
from lightning_core.storage.atomic_files import write_whole

POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:; base-uri 'none'; form-action 'none'"


def document(title: str, body: str) -> str:
    """Return a whole page.

    Args:
        title: Title of the page, as text.
        body: Its content, as HTML.
    """
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">'
        '<meta name="viewport" content="width=device-width,initial-scale=1">'
        f"<title>{escape(title)}</title><style>{STYLE}</style></head><body><main>{body}</main></body></html>"
    )


def write_document(path: Path, text: str) -> None:
    """Write a page, completely or not at all."""
    write_whole(path, text)
