"""The form for bundles: checks a bundle in place, and submits it after confirmation."""

from __future__ import annotations


def body() -> str:
    """Return the content of the page; its script checks and submits by the API."""
    return (
        '<h1>Submit a bundle</h1><p class="soft">A bundle is code: its jobs run as the account of the pool. Checking '
        "it runs none of its code; submitting it imports the classes that its configs name.</p>"
        '<form id="bundle-form"><label class="field" for="bundle">Bundle, as YAML</label>'
        '<textarea id="bundle" class="bundle" spellcheck="false" autocomplete="off" autocapitalize="off" '
        'aria-describedby="problems"></textarea>'
        '<div class="tools"><button id="check" type="button" class="plain">Check</button>'
        '<button type="submit">Submit …</button></div></form>'
        '<section class="panel" id="found" hidden><h2 id="found-words" role="status"></h2>'
        '<ol class="problems" id="problems"></ol></section>'
        '<dialog id="sure" aria-labelledby="sure-words"><form method="dialog"><p id="sure-words">Submit this bundle? '
        'Its jobs run as the account of the pool.</p><div class="tools"><button value="yes">Submit</button>'
        '<button value="no" class="plain">No</button></div></form></dialog>'
    )
