"""Makes report-<example>.png: the reports of examples/frozen_lake and examples/cartpole, each from one section on.

    .venv/bin/python docs/pictures/make_report.py

Needs Chromium (Debian: chromium), and Playwright: `pip install playwright` in an environment of its own, whose folder of packages is in PYTHONPATH.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
HERE = Path(__file__).resolve().parent
WIDTH, HEIGHT = 1100, 1180
PICTURES = {"frozen_lake": "summary", "cartpole": "curves"}


def picture(url: str, file: Path, *, section: str) -> None:
    """What a window of this size shows of the page, from this section on."""
    from playwright.sync_api import sync_playwright  # noqa: PLC0415  # see above

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": WIDTH, "height": HEIGHT}, color_scheme="light")
        page.goto(url)
        for each in page.query_selector_all("main section"):
            each.scroll_into_view_if_needed()
            each.wait_for_selector("h2 ~ *", state="attached")
        page.evaluate("id => document.getElementById(id).scrollIntoView()", section)
        page.wait_for_timeout(500)
        page.screenshot(path=file)
        browser.close()


def main() -> None:
    with tempfile.TemporaryDirectory(prefix="report-") as folder:
        environ = {**os.environ, "XDG_STATE_HOME": f"{folder}/s", "XDG_RUNTIME_DIR": f"{folder}/r"}
        (Path(folder) / "r").mkdir(mode=0o700)
        governor = [sys.executable, "-m", "governor"]
        for example, section in PICTURES.items():
            done = subprocess.run(
                [*governor, "run", str(ROOT / "examples" / example / "run.yaml"), "--quiet"],
                env=environ,
                stdout=subprocess.PIPE,
                text=True,
                check=True,
            )
            report = re.search(r"^Report: (.+)$", done.stdout, re.MULTILINE)
            if report is None:
                raise SystemExit(f"no report of {example} was written")
            picture(Path(report[1]).as_uri(), HERE / f"report-{example}.png", section=section)


if __name__ == "__main__":
    main()
