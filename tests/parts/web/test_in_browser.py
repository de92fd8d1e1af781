"""The page as people use it, in a real browser: by keyboard and pointer, while the pool goes on."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from datetime import datetime, timedelta
from zoneinfo import ZoneInfo

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Page as Tab
from playwright.sync_api import expect

from lightning_core.core.answers import JobStatus
from lightning_core.core.jobs import Capability, Job
from lightning_core.core.parts import Html, LivePage, Part, register, unregister
from lightning_core.core.targets import BatchTarget, LossTarget
from lightning_core.history.pool_scene import PoolScene
from lightning_core.parts.market.market_controller import MarketController
from lightning_core.parts.market.market_page import draw
from lightning_core.parts.web.visitors import account, reader
from tests.parts.web.browsing import Browsing, browsing

ANN, READER = account("ann"), reader("reader")
# What is wider than the page, but what is scrolled, drawn or for screen readers alone.
WIDER = """() => [...document.querySelectorAll("main *")]
  .filter((one) => one.getBoundingClientRect().right > document.documentElement.clientWidth + 1)
  .filter((one) => !one.closest("svg, pre, .scrolls, .quiet, thead") && getComputedStyle(one).display !== "inline")
  .map((one) => `${one.tagName}.${one.className}`)"""
LONG = "a-job-whose-name-says-all-that-was-ever-thought-of-it-v2"
ELASTIC = frozenset({Capability.HOLD, Capability.RELEASE, Capability.RESIZE})
HOSTILE = "<img src=x onerror=alert(1)>"


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browsing]:
    expect.set_options(timeout=60_000)
    with browsing(tmp_path_factory.mktemp("page") / "pool") as found:
        page = found.page
        page.submit(
            Job("vit", 600.0, LossTarget("loss", 0.5)), Job("gru", 900.0, BatchTarget(1000)),
            Job("free", math.inf, BatchTarget(10)),
            Job(LONG, 900.0, LossTarget(HOSTILE, 0.5), sizes=(1, 2), max_devices=2, can=ELASTIC),
        )  # fmt: skip
        for number in range(1, 4):
            page.report("vit", number, [2.0 / number, 1.9 / number, 1.8 / number])
        page.watch.start()
        register("every", Part(pages={"Every market": LivePage(every_market)}))
        yield found
        unregister("every")


def every_market(scene: PoolScene) -> Html:
    """Draw a pool as if it had a market."""
    told = {"market": MarketController(policy="max-spot").describe()}
    return draw(scene._replace(about={**scene.about, "controllers": told}))


@pytest.fixture
def site(served: Browsing) -> Iterator[Browsing]:
    yield served
    served.close_tabs()
    assert served.troubles == []


def status(site: Browsing, name: str) -> JobStatus:
    _, jobs = site.page.server.do(site.page.server.actor.status())
    found: JobStatus = next(job for job in jobs if job.name == name)
    return found


def test_all_can_be_reached_by_the_keyboard(site: Browsing) -> None:
    tab = site.enter(ANN)
    expect(tab.locator("#jobs tbody tr")).to_have_count(4)
    tab.keyboard.press("Tab")
    expect(tab.locator("a.skip")).to_be_focused()
    tab.keyboard.press("/")
    expect(tab.get_by_label("Search")).to_be_focused()
    tab.keyboard.type("vit")
    expect(tab.locator("#jobs tbody tr")).to_have_count(1)
    expect(tab.locator("#count")).to_have_text("1 of 4 jobs")
    tab.reload()  # what was chosen stays
    expect(tab.locator("#jobs tbody tr")).to_have_count(1)
    tab.locator("#jobs tbody a").focus()
    tab.keyboard.press("Enter")
    expect(tab.get_by_role("heading", level=1)).to_have_text("vit")


def test_what_changes_in_the_pool_changes_on_the_page(site: Browsing) -> None:
    tab = site.enter(READER)
    expect(tab.locator("#live")).to_have_text("live")
    row = tab.locator("#jobs tbody tr", has_text="vit")
    link = row.get_by_role("link")
    expect(row).to_contain_text("0.75")
    link.focus()
    site.page.report("vit", 4, [0.62, 0.61, 0.6])
    expect(row).to_contain_text("0.61")
    expect(link).to_be_focused()  # a row that is drawn anew keeps the focus


def test_a_deadline_is_changed_in_the_name_of_who_asks(site: Browsing) -> None:
    tab = site.enter(ANN)
    tab.goto(f"{site.base}/jobs/gru")
    tab.get_by_role("button", name="Deadline").click()
    dialog = tab.get_by_role("dialog")
    expect(dialog.get_by_role("textbox")).to_be_focused()
    tab.keyboard.type("soon")
    tab.keyboard.press("Enter")
    expect(tab.locator("#said")).to_contain_text("soon")  # and what a deadline may be
    assert status(site, "gru").deadline == pytest.approx(900.0, abs=60.0)
    tab.get_by_role("button", name="Deadline").click()
    dialog.get_by_role("textbox").fill("2h")
    dialog.get_by_role("button", name="Yes").click()
    expect(tab.locator("#said")).to_contain_text("gru has the deadline 2h")
    assert status(site, "gru").deadline > 7000.0
    expect(tab.locator("#story")).to_contain_text("ann")


def test_cancelling_asks_once_and_no_means_no(site: Browsing) -> None:
    tab = site.enter(ANN)
    tab.goto(f"{site.base}/jobs/free")
    cancel, dialog = tab.get_by_role("button", name="Cancel job"), tab.get_by_role("dialog")
    cancel.click()
    dialog.get_by_role("button", name="No").click()
    cancel.click()
    tab.keyboard.press("Escape")
    expect(dialog).to_be_hidden()
    assert status(site, "free").verdict is None
    cancel.click()
    expect(dialog).to_contain_text("Cancel free?")
    dialog.get_by_role("button", name="Yes").click()
    expect(tab.locator("#verdict")).to_contain_text("cancelled")
    expect(tab.get_by_role("group", name="Steer this job")).to_be_hidden()  # it has ended: nothing is left to ask


@pytest.mark.parametrize("width", [390, pytest.param(900, marks=pytest.mark.nightly), 1440])
def test_nothing_is_wider_than_the_page(site: Browsing, width: int) -> None:
    tab = site.enter(ANN, viewport={"width": width, "height": 900})
    for path in ("/", f"/jobs/{LONG}", "/timeline", "/pages/every-market"):
        tab.goto(site.base + path)
        expect(tab.locator("main")).to_be_visible()
        if path == "/":
            expect(tab.locator("#jobs tbody tr")).to_have_count(4)
        assert tab.evaluate(WIDER) == [], path


def test_the_chart_can_be_zoomed(site: Browsing) -> None:
    tab = site.enter(READER)
    tab.goto(f"{site.base}/jobs/vit")
    drawn = tab.locator("#chart .drawn")
    tab.get_by_role("button", name="zoom in").click()
    expect(drawn).not_to_have_attribute("data-low", "0.0")
    low, high = (float(drawn.get_attribute(f"data-{end}") or 0) for end in ("low", "high"))
    tab.get_by_role("button", name="all", exact=True).click()
    expect(drawn).to_have_attribute("data-low", "0.0")
    # The job goes on, and the chart with it: half of what was there is less than half of what is there now.
    assert 0 < high - low < 0.6 * float(drawn.get_attribute("data-high") or 0)
    box = tab.locator("#chart svg.chart").bounding_box()
    assert box is not None
    tab.mouse.move(box["x"] + 0.4 * box["width"], box["y"] + 50)
    tab.mouse.down()
    tab.mouse.move(box["x"] + 0.7 * box["width"], box["y"] + 60)
    tab.mouse.up()
    expect(drawn).not_to_have_attribute("data-low", "0.0")


def test_moments_have_dates_in_the_zone_of_the_reader(site: Browsing) -> None:
    """The clock of the browser is held, so that neither case depends on how near midnight the test runs."""
    zone = ZoneInfo("Asia/Kathmandu")  # 5:45 ahead of UTC
    tab = site.enter(READER, timezone_id=zone.key, locale="en-GB")
    now = datetime.now(zone)
    likely = {f"{now + timedelta(seconds=600 + k):%H:%M}" for k in range(-300, 10)}  # of a deadline of ten minutes
    due = tab.locator("#facts div", has_text="due").locator("dd")
    tab.clock.set_fixed_time(now + timedelta(days=3))
    tab.goto(f"{site.base}/jobs/vit")
    expect(due).to_have_attribute("title", re.compile("GMT\\+5:45"))
    day, _, hour = str(due.text_content()).rpartition(", ")
    assert re.fullmatch(r"\d{1,2} \w+( \d{4})?", day)
    assert hour in likely
    last = tab.locator("#story [data-at]").last
    expect(last).to_have_text(re.compile(r", \d\d:\d\d$"))
    script = "async (at) => (await import(new URL('stream.js', document.scripts[0].src))).dateOf(Number(at)) / 1000"
    when = tab.evaluate(script, due.get_attribute("data-at"))
    tab.clock.set_fixed_time(when)
    tab.reload()
    expect(due).to_have_text(hour)


def test_a_reader_is_offered_nothing_to_ask(site: Browsing) -> None:
    tab = site.enter(READER)
    expect(tab.locator("header.top")).to_contain_text("read-only")
    tab.goto(f"{site.base}/jobs/vit")
    expect(tab.get_by_role("heading", level=1)).to_have_text("vit")
    assert tab.locator("[data-ask]").count() == 0


def test_a_strangers_markup_is_text(site: Browsing) -> None:
    tab = site.enter(READER)
    expect(tab.locator("#jobs")).to_contain_text(HOSTILE)
    tab.goto(f"{site.base}/jobs/{LONG}")
    expect(tab.locator("#facts")).to_contain_text(HOSTILE)
    assert tab.locator("img").count() == 0


@pytest.mark.parametrize(("scheme", "width"), [pytest.param("light", 390, marks=pytest.mark.nightly), ("dark", 1280)])
def test_pages_are_accessible(site: Browsing, scheme: str, width: int) -> None:
    """The rules of axe-core: labels, names and roles, order of headings, contrast."""
    tab = site.enter(ANN, color_scheme=scheme, viewport={"width": width, "height": 900})
    expect(tab.locator("#jobs tbody tr")).to_have_count(4)
    problems = violations(tab)
    for path, content in (
        ("/timeline", "#lanes svg"), ("/jobs/vit", "#chart svg.chart"), ("/pages/every-market", "dl.tiles"),
    ):  # fmt: skip
        tab.goto(site.base + path)
        expect(tab.locator(content).first).to_be_visible()
        problems += violations(tab)
    outside = site.tab(color_scheme=scheme)
    outside.goto(f"{site.base}/enter?key=wrong")
    problems += violations(outside)
    assert problems == []


def violations(tab: Tab) -> list[str]:
    found = Axe().run(tab).response["violations"]
    return [f"{tab.url}, {one['id']}: {node['html'][:120]}" for one in found for node in one["nodes"]]
