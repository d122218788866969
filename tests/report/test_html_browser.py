"""The HTML report in a real browser: Debian's chromium, driven by Selenium. Nothing is fetched, nothing complains, the controls work."""
from __future__ import annotations

import dataclasses
import json
import shutil
from pathlib import Path
from typing import Any, Dict, Iterator, List

import html_trees
import pytest

from npu_overflow.analysis.analyzer import analyze
from npu_overflow.report.model import LossScale, Operator, Report

webdriver = pytest.importorskip("selenium.webdriver", reason="needs selenium (from Python 3.10 on)")
pytestmark = pytest.mark.skipif(
    not shutil.which("chromedriver") or not (shutil.which("chromium") or shutil.which("google-chrome")),
    reason="needs a browser: apt-get install chromium chromium-driver",
)

SIZES = {"desk": (1280, 900), "phone": (390, 844)}


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> Dict[str, Path]:
    made = {}
    for name, tree in html_trees.TREES.items():
        folder = tmp_path_factory.mktemp(name)
        made[name] = folder / "report.html"
        analyze(str(tree(folder / "dump"))).to_html(str(made[name]), "en")
    return made


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    options = webdriver.ChromeOptions()
    options.binary_location = shutil.which("chromium") or shutil.which("google-chrome") or ""
    for argument in ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--hide-scrollbars", "--lang=en"):
        options.add_argument(argument)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    driver = webdriver.Chrome(options=options, service=webdriver.ChromeService(shutil.which("chromedriver")))
    yield driver
    driver.quit()


def _requests(driver: Any) -> List[str]:
    """Everything the page asked for, inline data aside."""
    events = [json.loads(entry["message"])["message"] for entry in driver.get_log("performance")]
    urls = [event["params"]["request"]["url"] for event in events if event["method"] == "Network.requestWillBeSent"]
    return [url for url in urls if not url.startswith("data:")]


def _open(driver: Any, page: Path, size: str = "desk") -> None:
    driver.get_log("performance")
    driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", {"width": SIZES[size][0], "height": SIZES[size][1], "deviceScaleFactor": 1, "mobile": False})
    driver.get(page.as_uri())


def _visible_rows(driver: Any) -> List[Any]:
    rows = "Array.from(document.querySelectorAll('#table tbody tr'))"
    return driver.execute_script("return %s.filter(row => row.offsetHeight).map(row => row.cells[0].textContent)" % rows)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("name", html_trees.TREES)
def test_it_opens_without_complaint_or_request(browser: Any, pages: Dict[str, Path], name: str, size: str) -> None:
    _open(browser, pages[name], size)
    assert browser.get_log("browser") == []
    assert _requests(browser) == [pages[name].as_uri()]
    assert browser.title == "Overflow report: %s" % browser.execute_script("return document.querySelector('h1').innerText")
    # nothing sticks out sideways
    assert browser.execute_script("return document.documentElement.scrollWidth") <= SIZES[size][0]
    assert browser.execute_script("return document.querySelectorAll('img, iframe, object, embed, form, a').length") == 0


def test_the_language_switch(browser: Any, pages: Dict[str, Path]) -> None:
    _open(browser, pages["culprit"])
    by_id = "document.getElementById('%s')"
    shown = "return [document.querySelector('#advice h2').innerText, %s.placeholder, %s.options[0].text]" % (by_id % "filter", by_id % "verdict")
    assert browser.execute_script(shown) == ["What to do", "Filter by name, type, file …", "all verdicts"]
    browser.find_element("id", "language").click()
    assert browser.execute_script(shown) == ["处理建议", "按名称、类型、文件等筛选……", "全部结论"]
    assert browser.execute_script("return document.body.innerText").count("What to do") == 0
    browser.find_element("id", "language").click()
    assert browser.execute_script(shown)[0] == "What to do"
    assert browser.get_log("browser") == []


def test_filter_and_sort(browser: Any, pages: Dict[str, Path]) -> None:
    _open(browser, pages["large"])
    assert len(_visible_rows(browser)) == 500
    field = browser.find_element("id", "filter")
    field.send_keys("SOFTMAX block_4")
    rows = _visible_rows(browser)
    assert rows and all(int(row) % 8 == 5 for row in rows) and browser.find_element("id", "shown").text == str(len(rows))
    browser.execute_script("let v = document.getElementById('verdict'); v.value = 'inherited'; v.dispatchEvent(new Event('change'))")
    assert 0 < len(_visible_rows(browser)) < len(rows)
    field.send_keys(" nothing of the kind")
    assert _visible_rows(browser) == [] and browser.find_element("id", "nothing").is_displayed()
    browser.execute_script("document.getElementById('verdict').value = ''")
    field.clear()
    field.send_keys(" ")
    number = browser.find_element("css selector", "th.c-number button")
    number.click()
    assert _visible_rows(browser)[:2] == ["500", "499"]
    number.click()
    assert _visible_rows(browser)[:2] == ["1", "2"]
    browser.find_element("css selector", "th.c-type button").click()
    kinds = browser.execute_script("return Array.from(document.querySelectorAll('#table tbody tr')).map(row => row.cells[1].textContent)")
    assert kinds == sorted(kinds, key=str.lower)
    assert browser.get_log("browser") == []


def test_a_row_opens_its_card_and_the_theme_switches(browser: Any, pages: Dict[str, Path]) -> None:
    _open(browser, pages["large"])
    browser.execute_script("document.querySelectorAll('#table tbody tr')[1].click()")
    assert browser.execute_script("return document.getElementById('op2').open") is True
    colours = []
    for _ in range(2):
        colours.append(browser.execute_script("return getComputedStyle(document.body).backgroundColor"))
        browser.find_element("id", "theme").click()
    assert colours[0] != colours[1]


def _keys(driver: Any, *keys: str) -> None:
    from selenium.webdriver.common.action_chains import ActionChains

    ActionChains(driver).send_keys(*keys).perform()


def _focused(driver: Any) -> str:
    return str(driver.execute_script("let e = document.activeElement; return e.id || e.className || e.tagName"))


def test_everything_can_be_reached_by_keyboard(browser: Any, pages: Dict[str, Path]) -> None:
    from selenium.webdriver.common.keys import Keys

    _open(browser, pages["culprit"])
    order = []
    for _ in range(60):
        _keys(browser, Keys.TAB)
        order.append(_focused(browser))
        if order[-1] == "op2":
            break
    assert order[:3] == ["language", "theme", "print"]
    assert "copy" in order and "filter" in order and "verdict" in order and order.index("filter") < order.index("verdict")
    # what has the focus is seen
    assert browser.execute_script("return getComputedStyle(document.activeElement).outlineStyle") != "none"
    _open(browser, pages["culprit"])
    _keys(browser, Keys.TAB, Keys.ENTER)
    assert browser.execute_script("return document.documentElement.lang") == "zh"
    browser.execute_script("document.querySelector('th.c-number button').focus()")
    _keys(browser, Keys.ENTER)
    assert _visible_rows(browser)[0] == "13"
    browser.execute_script("Array.from(document.querySelectorAll('#table tbody tr')).find(row => row.getAttribute('data-c') === '2').focus()")
    _keys(browser, Keys.ENTER)
    assert browser.execute_script("return document.getElementById('op2').open") is True
    assert browser.execute_script("return document.activeElement.tagName") == "SUMMARY"
    _keys(browser, Keys.ENTER)
    assert browser.execute_script("return document.getElementById('op2').open") is False


EMPTY = {
    "nothing": ({"records": 0}, "No dump lies here"),
    "reason": ({"records": 0, "reason": "not_reproduced", "mode": "inf_nan"}, "No operator is named"),
    "no_curve": ({"loss_scale": None}, "FusedMulAdd"),
    "no_drops": ({"loss_scale": LossScale()}, "FusedMulAdd"),
    "not_opened": ({"operators": (Operator(core="AI Core", status=32),), "first_index": 0}, "Whether this operator made"),
}


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("name", EMPTY)
def test_what_is_missing_leaves_no_gap(browser: Any, tmp_path: Path, name: str, size: str) -> None:
    """No finding, no loss scale, an operator of which nothing is known: the page opens and says so."""
    changes, said = EMPTY[name]
    report = Report(path="dump", version="0.1.0")
    if "loss_scale" in changes:
        report = analyze(str(html_trees.culprit_tree(tmp_path / "dump")))
    page = tmp_path / "report.html"
    dataclasses.replace(report, **changes).to_html(str(page), "en")
    _open(browser, page, size)
    assert browser.get_log("browser") == []
    text = browser.execute_script("return document.body.innerText")
    assert said in text
    assert not any(word in text for word in ("None", "undefined", "NaN %"))
    assert browser.execute_script("return document.documentElement.scrollWidth") <= SIZES[size][0]
    # a heading without anything below it is a gap
    assert browser.execute_script("return Array.from(document.querySelectorAll('section')).filter(part => part.children.length < 2).length") == 0
    assert browser.execute_script("return document.querySelectorAll('svg.curve').length") == 0
    browser.find_element("id", "language").click()
    assert browser.get_log("browser") == []


def test_hostile_names_do_nothing(browser: Any, pages: Dict[str, Path]) -> None:
    _open(browser, pages["hostile"])
    assert "owned" not in browser.title
    text = browser.execute_script("return document.body.textContent")
    for name in html_trees.HOSTILE[:5]:
        assert name in text
    assert browser.execute_script("return document.querySelectorAll('script').length") == 1


def test_it_prints(browser: Any, pages: Dict[str, Path]) -> None:
    _open(browser, pages["culprit"])
    printed = browser.execute_cdp_cmd("Page.printToPDF", {"printBackground": True})
    assert len(printed["data"]) > 10_000
