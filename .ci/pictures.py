"""Makes the pictures of the documentation from a real dump tree: ``python .ci/pictures.py`` (needs selenium, chromium, chromium-driver).

    docs/pictures/terminal.svg, terminal-zh.svg       what npu-overflow analyze prints, as rich draws it
    docs/pictures/report.png, report-phone.png …      the HTML report in a browser
"""
from __future__ import annotations

import base64
import contextlib
import io
import os
import re
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any, Iterator

SOURCE = Path(__file__).resolve().parent.parent
PICTURES = SOURCE / "docs" / "pictures"
sys.path[:0] = [str(SOURCE), str(SOURCE / "tests" / "report")]

DUMP = Path("precision_data/overflow/dump")

#: name -> (language, dark, width, the part of the page shown: the first and the last section's id)
SHOTS = {
    "report": ("en", False, 1180, "finding", "advice"),
    "report-tensors": ("en", False, 1180, "tensors", "scale"),
    "report-chain": ("en", False, 1180, "chain", "operators"),
    "report-phone": ("en", True, 390, "finding", "finding"),
    "report-zh": ("zh", False, 1180, "finding", "advice"),
    "report-tensors-zh": ("zh", False, 1180, "tensors", "scale"),
    "report-chain-zh": ("zh", False, 1180, "chain", "operators"),
    "report-phone-zh": ("zh", True, 390, "finding", "finding"),
}


def terminal(report: Any, language: str, target: Path) -> None:
    """The terminal report as a picture; no font is fetched from anywhere."""
    from rich.console import Console
    from rich.text import Text

    from npu_overflow.report.terminal import print_report

    printed = io.StringIO()
    os.environ["TERM"] = "xterm-256color"
    print_report(report, file=printed, language=language, limit=2, width=100, colour=True)
    console = Console(record=True, width=100, file=io.StringIO(), force_terminal=True, legacy_windows=False)
    lines = printed.getvalue().rstrip().split("\n")
    cut = next((number for number, line in enumerate(lines) if "About this dump" in line or "关于此 dump" in line), len(lines))
    console.print(Text.from_ansi("\n".join(lines[:cut]).rstrip()))
    drawn = console.export_svg(title="npu-overflow analyze", unique_id="report")
    drawn = re.sub(r"@font-face\s*\{.*?\}", "", drawn, flags=re.DOTALL).replace("Fira Code, monospace", "DejaVu Sans Mono, Menlo, Consolas, monospace")
    if language == "zh":  # rich takes a Chinese character for one cell here, which would squeeze the text
        drawn = re.sub(r' textLength="[^"]*"', "", drawn)
    target.write_text(re.sub(r"\n\s*\n+", "\n", drawn), encoding="utf-8")


@contextlib.contextmanager
def browser() -> Iterator[Any]:
    from selenium import webdriver

    options = webdriver.ChromeOptions()
    options.binary_location = shutil.which("chromium") or ""
    for argument in ("--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--force-color-profile=srgb"):
        options.add_argument(argument)
    driver = webdriver.Chrome(options=options, service=webdriver.ChromeService(shutil.which("chromedriver")))
    try:
        yield driver
    finally:
        driver.quit()


def shot(driver: Any, page: Path, name: str) -> None:
    language, dark, width, first, last = SHOTS[name]
    driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", {"width": width, "height": 1000, "deviceScaleFactor": 1, "mobile": False})
    driver.get(page.as_uri())
    dressed = "let root = document.documentElement; root.lang = arguments[0]; root.dataset.theme = arguments[1]"
    driver.execute_script(dressed, language, "dark" if dark else "light")
    top, bottom = (driver.execute_script("let box = document.getElementById(arguments[0]).getBoundingClientRect(); return [box.top, box.bottom]", part)
                   for part in (first, last))
    height = min(bottom[1] - top[0], 1150) + 24
    clip = {"x": 0, "y": max(0, top[0] - 12), "width": width, "height": height, "scale": 1}
    data = driver.execute_cdp_cmd("Page.captureScreenshot", {"format": "png", "clip": clip, "captureBeyondViewport": True})
    (PICTURES / (name + ".png")).write_bytes(base64.b64decode(data["data"]))


def sample() -> Any:
    """The report of a dump, made in the working folder."""
    import html_trees

    from npu_overflow.analysis.analyzer import analyze

    DUMP.mkdir(parents=True)
    html_trees.culprit_tree(DUMP)
    return analyze(str(DUMP))


def terminal_only(language: str, target: str) -> None:
    """One picture of the terminal, in an empty working folder: a test compares its words with those of the picture that is kept."""
    terminal(sample(), language, Path(target))


def main() -> None:
    PICTURES.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        report = sample()
        for language, name in (("en", "terminal.svg"), ("zh", "terminal-zh.svg")):
            terminal(report, language, PICTURES / name)
        page = Path(report.to_html("report.html", "en")).resolve()
        with browser() as driver:
            for name in SHOTS:
                shot(driver, page, name)
        os.chdir(str(SOURCE))
    for picture in sorted(PICTURES.iterdir()):
        print("%8d  %s" % (picture.stat().st_size, picture.relative_to(SOURCE)))


if __name__ == "__main__":
    main()
