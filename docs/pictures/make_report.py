"""Makes report.png: the report of examples/frozen_lake.

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
WIDTH, HEIGHT = 1100, 1280


def picture(url: str, file: Path, *, wait: str) -> None:
    from playwright.sync_api import sync_playwright  # noqa: PLC0415  # see above

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": WIDTH, "height": HEIGHT}, color_scheme="light")
        page.goto(url)
        page.wait_for_selector(wait, timeout=60_000)
        page.wait_for_timeout(500)
        page.screenshot(path=file)
        browser.close()


def main() -> None:
    with tempfile.TemporaryDirectory(prefix="report-") as folder:
        environ = {**os.environ, "XDG_STATE_HOME": f"{folder}/s", "XDG_RUNTIME_DIR": f"{folder}/r"}
        (Path(folder) / "r").mkdir(mode=0o700)
        governor = [sys.executable, "-m", "governor"]
        example = ROOT / "examples" / "frozen_lake" / "run.yaml"
        done = subprocess.run(
            [*governor, "run", str(example), "--quiet"],
            env=environ,
            stdout=subprocess.PIPE,
            text=True,
            check=True,
        )
        report = re.search(r"^Report: (.+)$", done.stdout, re.MULTILINE)
        if report is None:
            raise SystemExit("no report was written")
        picture(Path(report[1]).as_uri(), HERE / "report.png", wait="#curves .uplot")


if __name__ == "__main__":
    main()
