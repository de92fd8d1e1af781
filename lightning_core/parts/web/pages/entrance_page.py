"""The page for signing in."""

from __future__ import annotations

from lightning_core.report.svg import escape


def body(words: str) -> str:
    """Return the content of the page: why it is shown, and a field for a token."""
    return (
        f'<div class="panel door"><h1>Sign in</h1><p>{escape(words)}</p><p class="soft">'
        "<code>lightning-core serve</code> prints a link that works once. Or give a token, which "
        "<code>lightning-core token new</code> makes.</p>"
        '<form method="post" action="/enter"><label for="token">Token</label> '
        '<input id="token" name="token" type="password" autocomplete="off" required> <button>Enter</button></form>'
        "</div>"
    )
