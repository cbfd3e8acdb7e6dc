"""The page in a real browser, from disk: what is seen, what is asked for, what is said on the console."""

from __future__ import annotations

import base64
import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fastntk.report import write_report

selenium = pytest.importorskip("selenium", reason="selenium is not installed: pip install -e '.[test]'")
BROWSER, DRIVER = shutil.which("chromium"), shutil.which("chromedriver")
pytestmark = pytest.mark.skipif(
    BROWSER is None or DRIVER is None, reason="needs Debian's packages chromium and chromium-driver, which are not installed"
)

SIZES = {"desktop": (1280, 900), "phone": (375, 800)}
PNG = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAQAAAC1HAwCAAAAC0lEQVR42mNk+A8AAQUBAScY42YAAAAASUVORK5CYII="
)  # one pixel
PLOTS = """
return [...document.querySelectorAll('svg.plot')].map(e => e.getBoundingClientRect()).map(box => [box.width, box.height])
"""
OVERFLOW = "return [document.documentElement.scrollWidth, document.documentElement.clientWidth]"
OUTSIDE = """
const width = document.documentElement.clientWidth;
return [...document.querySelectorAll('main > section > *, figure, .facts, .tiles > div')]
  .filter(e => e.getBoundingClientRect().right > width + 0.5).map(e => e.outerHTML.slice(0, 120))
"""
COLOURS = "const s = getComputedStyle(document.body); return [s.backgroundColor, s.color]"


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    from selenium import webdriver
    from selenium.webdriver.chrome.service import Service

    options = webdriver.ChromeOptions()
    options.binary_location = BROWSER or ""
    home = tmp_path_factory.mktemp("browser")
    options.add_argument(f"--user-data-dir={home}")
    for argument in ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--hide-scrollbars"):
        options.add_argument(argument)
    options.set_capability("goog:loggingPrefs", {"performance": "ALL", "browser": "ALL"})
    # The driver's path is given, so selenium does not look for one to download.
    driver = webdriver.Chrome(options=options, service=Service(executable_path=DRIVER))
    yield driver
    driver.quit()


def opened(browser: Any, page: Path, *, size: tuple[int, int], scheme: str = "light") -> None:
    width, height = size
    metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [{"name": "prefers-color-scheme", "value": scheme}]})
    browser.get_log("performance"), browser.get_log("browser")
    browser.get(page.as_uri())


def requests(browser: Any, page: Path) -> list[str]:
    """What the page asked for, itself included; the browser's own start page may still be loading, and is not ours."""
    events = [json.loads(entry["message"])["message"] for entry in browser.get_log("performance")]
    sent_by_browser = [event["params"] for event in events if event["method"] == "Network.requestWillBeSent"]
    return [params["request"]["url"] for params in sent_by_browser if params["documentURL"] == page.as_uri()]


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_page_in_a_browser(browser: Any, record: dict[str, Any], tmp_path: Path, size: str, scheme: str) -> None:
    page = write_report(record, tmp_path / "report.html")
    opened(browser, page, size=SIZES[size], scheme=scheme)
    verdict = browser.find_element("id", "verdict")
    assert verdict.is_displayed()
    assert "like one that never saw this data" in verdict.text
    assert verdict.location["y"] + 100 < SIZES[size][1], "the verdict is not on the first screen"
    plots = browser.execute_script(PLOTS)
    assert len(plots) == 13
    assert all(width > 200 and height > 30 for width, height in plots)
    content, window = browser.execute_script(OVERFLOW)
    assert content <= window == SIZES[size][0]
    assert browser.execute_script(OUTSIDE) == []
    assert requests(browser, page) == [page.as_uri()]
    assert browser.get_log("browser") == []
    background, ink = browser.execute_script(COLOURS)
    assert (sum(map(int, background[4:-1].split(","))) > sum(map(int, ink[4:-1].split(",")))) == (scheme == "light")
    shot = tmp_path / f"{size}-{scheme}.png"
    assert browser.save_screenshot(str(shot))
    assert shot.stat().st_size > 10_000


def test_details_open_by_keyboard(browser: Any, record: dict[str, Any], tmp_path: Path) -> None:
    from selenium.webdriver.common.keys import Keys

    opened(browser, write_report(record, tmp_path / "report.html"), size=SIZES["phone"])
    summary = browser.find_element("css selector", "#flow summary")
    table = browser.find_element("css selector", "#flow details table")
    assert not table.is_displayed()
    summary.send_keys(Keys.ENTER)
    assert table.is_displayed()
    content, window = browser.execute_script(OVERFLOW)
    assert content <= window


def test_pictures_come_from_the_page_itself(browser: Any, record: dict[str, Any], tmp_path: Path) -> None:
    page = write_report(record, tmp_path / "report.html", thumbnails=[PNG] * 4)
    opened(browser, page, size=SIZES["desktop"])
    loaded = browser.execute_script("return [...document.images].map(e => e.complete && e.naturalWidth > 0)")
    assert loaded == [True] * 4
    assert [address for address in requests(browser, page) if not address.startswith("data:")] == [page.as_uri()]
    assert "asked to be forgotten" in browser.find_element("css selector", ".alarm").text


def test_names_with_markup_do_not_run(browser: Any, record: dict[str, Any], tmp_path: Path) -> None:
    evil = "<img src=x onerror=\"document.title='gone'\"><script>document.title='gone'</script>"
    record["flow"]["classes"][1] = record["subject"]["model"] = evil
    page = write_report(record, tmp_path / "report.html")
    opened(browser, page, size=SIZES["desktop"])
    assert browser.title == "Unlearning report: request to forget 4 samples"
    assert browser.execute_script("return document.images.length + document.scripts.length") == 0
    assert requests(browser, page) == [page.as_uri()]


def test_the_policy_stops_what_would_get_past_the_escaping(browser: Any, record: dict[str, Any], tmp_path: Path) -> None:
    page = write_report(record, tmp_path / "report.html")
    foreign = "<script>document.title='gone'</script><img src='other.png' onerror=\"document.title='gone'\">"
    page.write_text(page.read_text("utf-8").replace("</main>", f"{foreign}</main>"), "utf-8")
    (tmp_path / "other.png").write_bytes(PNG)
    opened(browser, page, size=SIZES["desktop"])
    assert browser.execute_script("return [...document.images].map(e => e.naturalWidth)") == [0]
    assert browser.title == "Unlearning report: request to forget 4 samples"


def test_it_prints_on_a_few_pages(browser: Any, record: dict[str, Any], tmp_path: Path) -> None:
    opened(browser, write_report(record, tmp_path / "report.html"), size=SIZES["desktop"], scheme="dark")
    pdf = browser.execute_cdp_cmd("Page.printToPDF", {"paperWidth": 8.27, "paperHeight": 11.69})
    document = base64.b64decode(pdf["data"])
    assert document.startswith(b"%PDF")
    assert 3 <= document.count(b"/Type /Page\n") <= 12
