"""The report and the live page of a run, in a real Chromium, beside its result."""

import json
import signal
from contextlib import contextmanager

from tests.support.pages import browser
from tests.support.pages.report_documents import Page

LOOK = """
page.wait_for_selector("#run_file")
scrolled(page)
found["metrics"] = page.evaluate("Object.fromEntries([...document.querySelectorAll('[data-metric]')].map(each => [each.dataset.metric, each.dataset.value]))")
found["outcome"] = page.inner_text("#outcome .badge")
found["images"] = len(page.query_selector_all("img, iframe"))
found["text"] = page.inner_text("main")
"""


def ended(process):
    process.terminate()
    process.wait(60)


@contextmanager
def served(governor, *options):
    daemon = governor.begin("serve", *options)
    try:
        while not governor.works("status"):
            assert daemon.poll() is None
        yield
    finally:
        ended(daemon)


def look_at_both(uid, governor, playwright, folder):
    """Report and live page have the metrics of the result; returns what was found on each."""
    result = json.loads(governor("results", uid, "--json"))
    governor("report", uid, "-o", "report.html")
    assert Page((folder / "report.html").read_text()).data["runs"][0]["missing"] == []
    metrics = {
        f"{phase['name']} {name}": value
        for phase in result["phases"]
        for name, value in phase["metrics"].items()
    }
    view = governor.begin("view", uid)
    both = []
    try:
        url = view.stdout.readline().split()[1]
        for address in ((folder / "report.html").as_uri(), url):
            found = browser.visit(playwright, address, LOOK)
            assert (found["console"], found["elsewhere"], found["dialogs"]) == ([], [], [])
            shown = {name: float(value) for name, value in found["metrics"].items() if value != "undefined"}
            assert shown == metrics
            assert result["outcome"] in found["outcome"]
            both.append(found)
    finally:
        view.send_signal(signal.SIGINT)
        view.wait(30)
    return both
