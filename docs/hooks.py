"""Build steps of the documentation that MkDocs runs: pages made from code, and the sources as mkdocstrings needs them.

Nothing of Ray, torch or Lightning is imported, so the pages build in seconds on any machine.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.nav import Navigation, Section
from mkdocs.structure.pages import Page

ROOT = Path(__file__).resolve().parent.parent
# Outside docs/, so that mkdocs does not take it for pages; build/ is not under version control.
SOURCE = ROOT / "build" / "docs-source"
EDITED = "<!-- Generated from the code when the pages are built. -->\n\n"


def on_startup(**_: Any) -> None:
    """Lay the sources out as they are installed: ``callbacks/`` as ``lightning_core/callbacks``."""
    shutil.rmtree(SOURCE, ignore_errors=True)
    skip = shutil.ignore_patterns("__pycache__", "*.csv", "*.json")
    shutil.copytree(ROOT / "lightning_core", SOURCE / "lightning_core", ignore=skip)
    shutil.copytree(ROOT / "callbacks", SOURCE / "lightning_core" / "callbacks", ignore=skip)
    for path in SOURCE.rglob("*.py"):
        path.write_text(as_markdown(path.read_text()))


def as_markdown(source: str) -> str:
    """Return a module whose docstrings hold Markdown where they held reStructuredText: roles, notes, literal blocks.

    Example::

        >>> as_markdown("As of :class:`~lightning_core.core.jobs.Job`.")
        'As of `Job`.'
    """
    source = re.sub(r":(?:class|func|meth|attr|mod|data|exc):`~?(?:[^`]*\.)?([^`.]+)`", r"`\1`", source)
    source = re.sub(r"^(\s*)\.\. note::$", r"\1!!! note", source, flags=re.MULTILINE)
    return re.sub(r"^(\s*Example)::$", r"\1:", source, flags=re.MULTILINE)


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages that are generated from the code."""
    pages = {"cli": cli_page(), "environment": environment_page(), "http-api": http_page()}
    for path, text in ((f"reference/{name}.md", text) for name, text in pages.items()):
        if (there := files.get_file_from_path(path)) is not None:
            files.remove(there)
        files.append(File.generated(config, path, content=EDITED + text))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Turn links to files of the repository outside ``docs/`` into plain text: the site does not hold them."""
    here = (ROOT / "docs" / page.file.src_uri).parent

    def shown(match: re.Match[str]) -> str:
        target = Path(os.path.normpath(here / match["target"].partition("#")[0]))
        return match["text"] if not target.is_relative_to(ROOT / "docs") else match[0]

    return re.sub(r"(?<!!)\[(?P<text>[^\]]+)\]\((?P<target>\.\./[^)\s]+)\)", shown, markdown)


# ---------------------------------------------------------------------------------------------------- command line


def cli_page() -> str:
    """Return the reference of ``lightning-core``, written from its argument parsers."""
    from lightning_core.cli import main

    parser = main.make_parser(with_parts=True)
    lines = ["# Command line", "", f"{_sentence(parser.description or '')}", ""]
    lines += ["Every command takes `--help`, and `--debug` to show tracebacks of errors in the program itself.", ""]
    lines += ["| command | what it does |", "|---|---|"]
    found = list(commands(parser))
    lines += [f"| [`{name}`](#{name.replace(' ', '-')}) | {_cell(words)} |" for name, words, _ in found]
    for name, words, command in found:
        lines += ["", f"## {name}", "", _sentence(words), "", "```text", _usage(command), "```", ""]
        lines += _arguments(command)
    lines += ["", "## Exit codes", "", "| code | meaning |", "|---|---|"]
    lines += [f"| {code} | {meaning} |" for code, meaning in EXIT_CODES]
    return "\n".join(lines) + "\n"


EXIT_CODES = (
    ("0", "All jobs met their targets, or the command did what was asked."),
    ("1", "A job failed, or `doctor` found an error."),
    ("2", "The input is invalid, or no pool is up."),
    ("3", "Some jobs did not meet their targets."),
    ("70", "The pool was lost."),
    ("129, 130, 143", "A signal interrupted the command: SIGHUP, SIGINT or SIGTERM."),
)


def commands(parser: argparse.ArgumentParser, prefix: str = "") -> Iterator[tuple[str, str, argparse.ArgumentParser]]:
    """Yield name, help and parser of each command that runs something, in the order in which they are listed."""
    for action in parser._actions:
        if not isinstance(action, argparse._SubParsersAction):
            continue
        words = {choice.dest: choice.help or "" for choice in action._choices_actions}
        for name, command in action.choices.items():
            inner = list(commands(command, f"{prefix}{name} "))
            yield from inner or [(f"{prefix}{name}", words.get(name, ""), command)]


def _usage(command: argparse.ArgumentParser) -> str:
    return command.format_usage().removeprefix("usage: ").rstrip()


def _arguments(command: argparse.ArgumentParser) -> list[str]:
    rows = []
    for action in command._actions:
        if action.dest in ("help", "debug") or action.help == argparse.SUPPRESS:
            continue
        value = action.metavar or ("" if action.nargs == 0 else action.dest.upper())
        value = " ".join(value) if isinstance(value, tuple) else value
        name = f"{', '.join(action.option_strings)} {value}".strip()
        words = (action.help or "").replace("%%", "%")
        if action.choices:
            words = f"{words} ({', '.join(map(str, action.choices))})".strip()
        if "%(default)s" in words:
            words = words.replace("%(default)s", str(action.default))
        rows.append(f"| `{_cell(name)}` | {_cell(_sentence(words))} |")
    return ["| argument | meaning |", "|---|---|", *rows] if rows else []


def _sentence(words: str) -> str:
    words = words.strip()
    return words[:1].upper() + words[1:] + ("" if words.endswith((".", "?", "!")) or not words else ".")


def _cell(words: str) -> str:
    return " ".join(words.split()).replace("|", "\\|").replace("<", "&lt;")


# ---------------------------------------------------------------------------------------------------- environment


def environment_page() -> str:
    """Return the reference of the environment variables, written from :mod:`lightning_core.variables`."""
    from lightning_core import variables

    lines = ["# Environment", "", "Variables that scripts and commands read, and variables that are set for processes",
             "that lightning_core starts. A misspelled `LIGHTNING_CORE_...` variable is reported.", ""]  # fmt: skip
    lines += ["| variable | meaning |", "|---|---|"]
    lines += [f"| `{variables.PREFIX}{name}` | {_cell(_sentence(words))} |" for name, words in variables.KNOWN.items()]
    lines += ["", "Variables of Ray that matter here:", "", "| variable | meaning |", "|---|---|"]
    lines += [f"| `{name}` | {words} |" for name, words in RAY]
    return "\n".join(lines) + "\n"


RAY = (
    ("RAY_AUTH_TOKEN", "Token of the Ray cluster to join."),
    ("RAY_AUTH_TOKEN_PATH", "File that holds the token. The default is `~/.ray/auth_token`."),
    ("RAY_AUTH_MODE", "`token`. Starting a pool is refused under any other mode."),
    ("RAY_ADDRESS", "Not read by lightning_core: name the cluster with `--ray` or `--pool`."),
)


# ---------------------------------------------------------------------------------------------------- API over HTTP


def http_page() -> str:
    """Return the reference of the API over HTTP, written from its own description by OpenAPI."""
    from lightning_core.parts.web.api.openapi import document

    described = document()
    guide = "[Watch a pool in a browser](../parts/serve.md#from-programs-and-from-afar)"
    lines = ["# API over HTTP", "", described["info"]["description"], "",
             f"A pool that is served says this by OpenAPI 3.1, at `/api/v1/openapi.json`. How to use it: {guide}.",
             ""]  # fmt: skip
    for path, operations in described["paths"].items():
        for method, operation in operations.items():
            body = operation.get("requestBody", {}).get("content")
            lines += [f"## {method.upper()} {path}", "", operation["summary"], ""]
            rows = [(one["name"], one["schema"], one["description"])
                    for one in operation["parameters"] if one["in"] == "query"]  # fmt: skip
            lines += _values(rows)
            lines += [f"Body: {_kind(body['application/json']['schema'])}.", ""] if body else []
            answer = operation["responses"]["200"]["content"]["application/json"]["schema"]
            lines += [f"Answer: {_kind(answer)}.", ""]
    lines += ["## What is sent and answered", ""]
    for name, schema in sorted(described["components"]["schemas"].items()):
        lines += [f"### {name}", "", schema["description"], ""]
        needed = schema.get("required", ())
        lines += _values([(key if key in needed else f"{key} (optional)", one, one.get("description", ""))
                          for key, one in schema.get("properties", {}).items()])  # fmt: skip
        lines += [f"One of {', '.join(f'`{value}`' for value in schema['enum'])}.", ""] if "enum" in schema else []
    return "\n".join(lines) + "\n"


def _values(rows: Sequence[tuple[str, Mapping[str, Any], str]]) -> list[str]:
    body = [f"| `{name}` | {_kind(schema)} | {_cell(words)} |" for name, schema, words in rows]
    return ["| value | type | meaning |", "|---|---|---|", *body, ""] if rows else []


def _kind(schema: Mapping[str, Any]) -> str:
    """Return the type of a value in words.

    Example::

        >>> _kind({"type": "array", "items": {"anyOf": [{"type": "number"}, {"type": "null"}]}})
        'list of number or null'
    """
    if "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        return f"[{name}](#{name.lower()})"
    if "anyOf" in schema:
        return " or ".join(map(_kind, schema["anyOf"]))
    if "enum" in schema:
        return ", ".join(f"`{value}`" for value in schema["enum"])
    if schema.get("type") == "array":
        return f"list of {_kind(schema['items'])}"
    limits = [f"{words} {schema[key]:,}" for key, words in (("minimum", "from"), ("maximum", "to")) if key in schema]
    return " ".join([str(schema.get("type", "any")), *limits])


def on_post_build(config: MkDocsConfig, **_: Any) -> None:
    """Remove what the theme ships and no page uses, so that the site holds nothing that names another host.

    Write the files for language models: they need the text of all pages.
    """
    site = Path(config.site_dir)
    for path in site.rglob("*.map"):
        path.unlink()
    [nav] = _navigation
    (site / "llms.txt").write_text(llms_text(nav, config))
    (site / "llms-full.txt").write_text(llms_full_text(nav))


# ---------------------------------------------------------------------------------------------------- language models

_navigation: list[Navigation] = []


def on_nav(nav: Navigation, config: MkDocsConfig, files: Files) -> Navigation:
    """Keep the navigation until the text of its pages is known."""
    _navigation[:] = [nav]
    return nav


def llms_text(nav: Navigation, config: MkDocsConfig) -> str:
    """Return the pages in the form of https://llmstxt.org: title, summary, and a list of links for each section."""
    lines = [f"# {config.site_name}", "", f"> {config.site_description}", "",
             "All pages in one file: [llms-full.txt](llms-full.txt).", "", "## Introduction", ""]  # fmt: skip
    for item in nav.items:
        if isinstance(item, Section):
            lines += ["", f"## {item.title}", ""]
        pages = item.children if isinstance(item, Section) else [item]
        lines += [_link(page, config) for page in pages if isinstance(page, Page)]
    return "\n".join(lines) + "\n"


def llms_full_text(nav: Navigation) -> str:
    """Return the text of all pages, in the order of the navigation."""
    return "\n".join(f"<!-- {page.url} -->\n\n{(page.markdown or '').strip()}\n" for page in nav.pages)


def _link(page: Page, config: MkDocsConfig) -> str:
    words = first_sentence(page.markdown or "")
    where = f"{(config.site_url or '').rstrip('/')}/{page.url}".lstrip("/")
    return f"- [{page.title}]({where})" + (f": {words}" if words else "")


def first_sentence(markdown: str) -> str:
    """Return the first sentence of the running text of a page, without links; empty if it has none.

    Example::

        >>> first_sentence("# Title\\n\\n![A](b.png)\\n\\nSee **[that](c.md#d)**, `e.f`: it\\nworks. And more.")
        'See that, `e.f`: it works.'
    """
    text = re.sub(r"^```.*?^```$|<!--.*?-->", "", markdown, flags=re.MULTILINE | re.DOTALL)
    for block in re.split(r"\n\s*\n", text):
        words = " ".join(block.split())
        if words and not re.match(r"[#|>!<:*-]|\d+\. ", words):
            plain = re.sub(r"\[([^\]]+)\]\([^)]*\)", r"\1", words.replace("**", ""))
            return re.split(r"(?<=[.?])\s(?=[A-Z])", plain, maxsplit=1)[0].removesuffix(":")
    return ""
