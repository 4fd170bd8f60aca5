"""Take the picture of a report: `python docs/screenshot.py FOLDER OUT.png [--width 1280] [--height 1500]`.

FOLDER holds a `report.html`; OUT.png shows the top of the page, or all of it with `--height 0`.  Needs
playwright (a development dependency) and a Chromium, Debian's or playwright's own.  The browser is offline.
"""

from __future__ import annotations

import argparse
import shutil
from pathlib import Path

from playwright.sync_api import sync_playwright

FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-background-networking"]


def take(
    page: Path, out: Path, *, width: int = 1280, height: int = 1500, top: int = 0, section: str = ""
) -> None:
    """Draw `page` in a window `width` pixels wide and save it as a PNG.

    height: of the picture, from `top` pixels down the page, 0 for the whole page.  section: CSS selector of the only
    element to show.
    """
    with sync_playwright() as play:
        browser = play.chromium.launch(executable_path=shutil.which("chromium"), args=FLAGS)
        window = browser.new_context(
            offline=True, viewport={"width": width, "height": height or 900}, device_scale_factor=1.5
        )
        tab = window.new_page()
        tab.goto(page.resolve().as_uri())
        tab.wait_for_selector("body[data-drawn]")
        if section:
            tab.locator(section).first.screenshot(path=out)
        elif height:
            area = {"x": 0, "y": top, "width": width, "height": height}
            tab.screenshot(path=out, full_page=True, clip=area)
        else:
            tab.screenshot(path=out, full_page=True)
        browser.close()


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "folder", type=Path, help="a run folder, or a folder of run folders, with a report.html"
    )
    parser.add_argument("out", type=Path, help="the PNG to write")
    parser.add_argument("--width", type=int, default=1280)
    parser.add_argument("--height", type=int, default=1500, help="0 for the whole page")
    parser.add_argument("--top", type=int, default=0, help="start so many pixels down the page")
    parser.add_argument("--section", default="", help="CSS selector of the one element to show")
    given = parser.parse_args()
    page = given.folder / "report.html"
    if not page.is_file():
        parser.error(f"{page} does not exist: write it with `causegrid report {given.folder}`")
    take(page, given.out, width=given.width, height=given.height, top=given.top, section=given.section)


if __name__ == "__main__":
    main()
