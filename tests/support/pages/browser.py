"""A real Chromium for tests of pages: Debian's package, driven by Playwright from the index."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support import from_index

REQUIREMENTS = Path(__file__).with_name("browser_requirements.txt")


def find():
    """The path of Chromium, or None."""
    names = (os.environ.get("CHROMIUM", ""), "chromium", "chromium-browser", "google-chrome")
    return next((path for name in names if name and (path := shutil.which(name))), None)


def chromium():
    """Its path. Skips the test where there is none."""
    if (found := find()) is None:
        pytest.skip("there is no Chromium: apt-get install chromium, or $CHROMIUM names one")
    return found


def install(folder):
    """Playwright, in a folder for PYTHONPATH. Skips the test where the index cannot be reached."""
    from_index.install(folder, REQUIREMENTS, what="Playwright", dependencies=True)
    return folder


def visit(packages, url, script, *, seconds=90, **more):
    """Runs `script`, the body of ``def look(page, found, given)``, on the page at `url`; returns what it put into `found`, with all that
    the page did: `console` (errors and warnings), `elsewhere` (requests), `dialogs`, `opened` (seconds until the outcome was there).
    """
    program = "\n".join(
        [
            _PROGRAM,
            "def look(page, found, given):",
            *(f"    {line}" for line in script.strip("\n").splitlines()),
            "main(look)",
        ]
    )
    asked = json.dumps({"url": url, "chromium": chromium(), "given": more})
    environ = {**os.environ, "PYTHONPATH": str(packages)}
    done = subprocess.run(
        [sys.executable, "-c", program, asked],
        capture_output=True,
        text=True,
        env=environ,
        timeout=seconds,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return json.loads(done.stdout.splitlines()[-1])


_PROGRAM = """
import json, sys, time
from urllib.parse import urlsplit
from playwright.sync_api import sync_playwright


def main(look):
    asked = json.loads(sys.argv[1])
    found = {"console": [], "elsewhere": [], "dialogs": []}
    own = urlsplit(asked["url"]).netloc
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=asked["chromium"], args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": 1280, "height": 900})
        page.on("console", lambda one: found["console"].append(one.text) if one.type in ("error", "warning") else None)
        page.on("pageerror", lambda one: found["console"].append(str(one)))
        page.on("dialog", lambda one: (found["dialogs"].append(one.message), one.dismiss()))

        def asked_for(request):
            where = urlsplit(request.url)
            if where.scheme not in ("file", "data", "blob") and where.netloc != own:
                found["elsewhere"].append(request.url)

        page.on("request", asked_for)
        began = time.perf_counter()
        page.goto(asked["url"])
        page.wait_for_selector("#outcome, #content p", timeout=20000)
        found["opened"] = time.perf_counter() - began
        look(page, found, asked["given"])
        browser.close()
    print(json.dumps(found))


def scrolled(page):
    "Has each section drawn."
    for section in page.query_selector_all("main section"):
        section.scroll_into_view_if_needed()
        section.wait_for_selector("h2 ~ *", state="attached")  # wait_for_function is eval, which the page's policy refuses
    page.wait_for_timeout(100)
"""
