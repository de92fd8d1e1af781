"""The built pages in a browser: each fits wide and narrow screens, and loads nothing from another host."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import ROOT, debian

WIDTHS = {"wide": 1400, "phone": 400}
# Loads each page in a frame of each width, and records its problems.
LOOK = """<!doctype html><meta charset="utf-8"><pre id="found">not done</pre><script>
const pages = %s, widths = %s, found = {};
async function look(page, name) {
  const frame = document.createElement("iframe");
  frame.style = `width: ${widths[name]}px; height: 900px; border: 0`;
  frame.src = "/" + page;
  await new Promise(done => { frame.onload = done; document.body.append(frame); });
  await new Promise(done => setTimeout(done, 100));
  const here = frame.contentDocument, root = here.documentElement;
  found[`${page} ${name}`] = {
    title: here.querySelector("h1")?.textContent ?? "",
    beyond: root.scrollWidth - root.clientWidth,
    broken: [...here.images].filter(image => image.complete && !image.naturalWidth).map(image => image.src),
    schemes: [...here.querySelectorAll("[data-md-color-scheme]")].map(one => one.dataset.mdColorScheme),
    unstyled: frame.contentWindow.getComputedStyle(here.querySelector(".md-header") ?? root).position !== "sticky",
  };
  frame.remove();
}
(async () => {
  for (const page of pages) for (const name of Object.keys(widths)) await look(page, name);
  document.getElementById("found").textContent = JSON.stringify(found);
})();
</script>"""


class Site(ThreadingHTTPServer):
    """Serves the pages to this machine, and records refused requests."""

    def __init__(self, folder: Path) -> None:
        self.pages = sorted(str(path.relative_to(folder)) for path in folder.rglob("*.html") if path.name != "404.html")
        self.refused: list[str] = []
        super().__init__(("127.0.0.1", 0), partial(Handler, directory=str(folder)))


class Handler(SimpleHTTPRequestHandler):
    server: Site

    def end_headers(self) -> None:
        self.send_header(
            "Content-Security-Policy", "default-src 'self' 'unsafe-inline' data: blob:; report-uri /refused"
        )
        super().end_headers()

    def do_GET(self) -> None:
        if self.path != "/look":
            return super().do_GET()
        body = (LOOK % (json.dumps(self.server.pages), json.dumps(WIDTHS))).encode()
        self.send_response(200)
        self.send_header("Content-Type", "text/html")
        self.end_headers()
        self.wfile.write(body)

    def do_POST(self) -> None:
        self.server.refused.append(self.rfile.read(int(self.headers["Content-Length"])).decode())
        self.send_response(204)
        self.end_headers()

    def send_error(self, code: int, *args: Any) -> None:
        if not self.path.endswith("favicon.ico"):
            self.server.refused.append(f"{code} {self.path}")
        super().send_error(code, *args)

    def log_message(self, *_: Any) -> None:
        """Nothing is printed."""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    pytest.importorskip("mkdocs", reason="needs the extra docs")
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--quiet", "--strict", "--site-dir", str(folder)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stderr
    server = Site(folder)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield server
    server.shutdown()


def test_language_models_find_every_page(tmp_path: Path) -> None:
    """By the hooks of the build, without the pages that it makes of them."""
    config_of = pytest.importorskip("mkdocs.config", reason="needs the extra docs").load_config
    from mkdocs.structure.files import get_files
    from mkdocs.structure.nav import get_navigation

    config = config_of(str(ROOT / "mkdocs.yml"), plugins=[], site_dir=str(tmp_path))
    files = config.plugins.run_event("files", get_files(config), config=config)
    nav = config.plugins.run_event("nav", get_navigation(files, config), config=config, files=files)
    for page in nav.pages:
        page.read_source(config)
    config.plugins.run_event("post_build", config=config)
    text = (tmp_path / "llms.txt").read_text()
    title, summary, *_ = [line for line in text.splitlines() if line]
    assert (title, summary) == ("# lightning_core", f"> {config.site_description}")
    found = dict(re.findall(r"^- \[[^\]]+\]\(([^)]+)\)(?:: (.+))?$", text, re.MULTILINE))
    assert list(found) == [page.url for page in nav.pages]
    assert [url for url, words in found.items() if not words] == ["glossary.html"]  # it is a table
    assert found["parts/assistants.html"].startswith("An assistant")
    assert not [words for words in found.values() if "](" in words or "**" in words or words.endswith(":")]
    whole = (tmp_path / "llms-full.txt").read_text()
    assert "\n# Glossary\n" in whole
    assert "## lightning-core mcp" not in text
    assert "\n## mcp\n" in whole  # of the generated reference of the commands


@pytest.mark.nightly
def test_no_page_loads_anything_from_another_host(site: Site) -> None:
    """Links to other hosts are for readers to follow; a browser loads nothing from them by itself."""
    folder = Path(site.RequestHandlerClass.keywords["directory"])  # type: ignore[attr-defined]
    assert {"llms.txt", "llms-full.txt"} <= {path.name for path in folder.iterdir()}
    for page in site.pages:
        text = (folder / page).read_text()
        loaded = re.findall(r"<(?:script|link|img|iframe|source)\b[^>]*?(?:src|href)=\"?((?:https?:)?//[^\" >]+)", text)
        assert not loaded, (page, loaded)
    for sheet in folder.rglob("*.css"):
        assert not re.search(r"(?:url\(|@import)\s*[\"']?(?:https?:)?//", sheet.read_text()), sheet


@pytest.mark.nightly
@pytest.mark.debian
def test_every_page_fits_the_screen(site: Site, tmp_path: Path) -> None:
    chromium = debian("chromium")
    command = [chromium, "--headless=new", "--no-sandbox", "--disable-gpu", f"--user-data-dir={tmp_path / 'profile'}",
               "--window-size=1500,1000", "--timeout=120000", "--virtual-time-budget=120000", "--dump-dom",
               f"http://127.0.0.1:{site.server_port}/look"]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, timeout=200)
    match = re.search(r'<pre id="found">(\{.*\})</pre>', done.stdout)
    assert match, done.stdout[-500:] + done.stderr[-500:]
    found = json.loads(match[1].replace("&amp;", "&").replace("&lt;", "<").replace("&gt;", ">"))
    assert len(found) == len(site.pages) * len(WIDTHS)
    for where, page in found.items():
        assert page["title"], where
        assert page["beyond"] <= 0, (where, f"{page['beyond']} pixels wider than the screen")
        assert not page["broken"], (where, page["broken"])
        assert {"default", "slate"} <= set(page["schemes"]), where
        assert not page["unstyled"], where
    assert not site.refused, site.refused
    shutil.rmtree(tmp_path / "profile", ignore_errors=True)
