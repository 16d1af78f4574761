"""Pages of reports in a real Chromium: nothing goes wrong in them, and people can use them."""

import contextlib
import http.server
import threading

import msgspec
import pytest

from governor.report import page
from governor.report.compare import compare
from governor.report.document import Column, Table
from tests.support.pages import browser
from tests.support.pages.report_documents import (
    HOSTILE,
    ROWS,
    curve,
    document,
    hostile_run,
    many,
    rows,
    run_document,
)

pytestmark = [pytest.mark.long, pytest.mark.timeout(400)]


def test_hostile_texts_are_shown_as_texts(visit):
    found = visit(
        document(hostile_run()),
        """
        scrolled(page)
        found["text"] = page.inner_text("main")
        found["images"] = len(page.query_selector_all("img, iframe"))
        found["title"] = page.title()
        """,
    )
    assert found["images"] == 0
    shown = HOSTILE.replace("\x1b", "␛").replace("\x00", "␀").replace("\u202e", "⟨202E⟩").split("\u2028")[0]
    assert found["text"].count(shown) >= 8
    assert "<img src=x onerror=alert(2)>" in found["title"]


def test_ten_thousand_episodes_and_tasks_open_at_once_sort_and_filter(visit):
    made = document(many())
    assert len(page.render(made)) < 1_000_000
    found = visit(
        made,
        """
        page.evaluate("document.getElementById('episodes').scrollIntoView()")
        page.wait_for_selector("#episodes tbody tr")
        count = lambda: page.inner_text("#episodes [role=status]")
        found["all"] = count()
        found["in_page"] = len(page.query_selector_all("#episodes tbody tr"))
        page.fill("#episodes input", "outcome:failed return<10")
        found["filtered"] = count()
        page.fill("#episodes input", "")
        page.select_option("#episodes select", "failed")
        found["chosen"] = count()
        page.select_option("#episodes select", "")
        page.click("#episodes th:nth-child(3) button")
        found["lowest"] = page.inner_text("#episodes tbody tr:nth-child(1) td:nth-child(3)")
        found["sort"] = page.get_attribute("#episodes th:nth-child(3)", "aria-sort")
        page.click("#episodes th:nth-child(3) button")
        found["highest"] = page.get_attribute("#episodes tbody tr:nth-child(1) td:nth-child(3)", "title")
        page.evaluate("document.querySelector('#episodes .grid').scrollTop = 1e9")
        page.wait_for_selector("#episodes tr[aria-rowindex='10001']")
        found["last"] = page.query_selector_all("#episodes tbody tr:not([aria-hidden])")[-1].get_attribute("aria-rowindex")
        scrolled(page)
        """,
    )
    returns = [index * 7919 % 10_007 / 7 for index in range(ROWS)]
    failed = [value for index, value in enumerate(returns) if index % 10 == 0]
    assert found["all"] == "10,000 rows"
    assert found["in_page"] < 100
    assert found["filtered"] == f"{sum(value < 10 for value in failed)} of 10,000 rows"
    assert found["chosen"] == "1,000 of 10,000 rows"
    assert (found["lowest"], found["sort"]) == ("0", "ascending")
    assert float(found["highest"]) == max(returns)
    assert found["last"] == str(ROWS + 1)


def test_timeline_and_curves_zoom(visit):
    found = visit(
        document(many()),
        """
        page.evaluate("document.getElementById('timeline').scrollIntoView()")
        page.wait_for_selector("#timeline canvas")
        where = lambda: page.inner_text("#timeline [role=status]")
        found["all"] = where()
        page.focus("#timeline canvas")
        page.keyboard.press("+")
        found["keys"] = where()
        box = page.query_selector("#timeline canvas").bounding_box()
        page.mouse.move(box["x"] + 600, box["y"] + 10)
        page.mouse.wheel(0, -300)
        page.wait_for_timeout(100)
        found["wheel"] = where()
        found["tip"] = page.inner_text("#timeline .tip")
        page.keyboard.press("0")
        found["again"] = where()
        page.evaluate("document.getElementById('curves').scrollIntoView()")
        page.wait_for_selector("#curves .u-over")
        page.wait_for_timeout(200)
        over = page.query_selector("#curves .u-over").bounding_box()
        label = lambda: page.inner_text("#curves .u-legend")
        y = over["y"] + over["height"] / 2
        page.mouse.move(over["x"] + over["width"] * 0.9, y)
        found["before"] = label()
        page.mouse.move(over["x"] + over["width"] * 0.2, y)
        page.mouse.down()
        page.mouse.move(over["x"] + over["width"] * 0.4, y, steps=5)
        page.mouse.up()
        page.mouse.move(over["x"] + over["width"] * 0.9, y)
        found["zoomed"] = label()
        page.click("#curves button:has-text('time')")
        page.wait_for_selector("#curves button[aria-pressed=true]:has-text('time')")
        page.wait_for_timeout(200)
        found["charts"] = len(page.query_selector_all("#curves .uplot"))
        """,
    )
    assert len({found["all"], found["keys"], found["wheel"]}) == 3
    assert found["again"] == found["all"]
    assert "fit[" in found["tip"]
    assert found["before"] != found["zoomed"]
    assert found["charts"] == 2


@pytest.mark.parametrize("width", [400, 1280])
def test_nothing_is_wider_than_the_window(visit, width):
    found = visit(
        document(many()),
        """
        page.set_viewport_size({"width": given["width"], "height": 800})
        scrolled(page)
        found["width"] = page.evaluate("document.documentElement.scrollWidth")
        """,
        width=width,
    )
    assert found["width"] == width


def test_several_runs_lie_over_each_other_and_each_can_be_chosen(visit):
    runs = [run_document(f"4wq7n2k{seed}", seed=seed, curves=[curve(shift=seed)]) for seed in (1, 2, 3)]
    found = visit(
        document(*runs, comparison=compare(runs)),
        """
        scrolled(page)
        found["charts"] = len(page.query_selector_all("#curves .uplot"))
        found["legend"] = page.inner_text("#curves .u-legend")
        found["comparison"] = page.inner_text("#comparison")
        page.select_option("header select", "2")
        page.wait_for_selector("#summary h2 + *")
        found["folder"] = page.inner_text("#summary")
        """,
    )
    assert found["charts"] == 1
    assert all(f"lake {run.summary.uid}" in found["legend"] for run in runs)
    assert "n = 3" in found["comparison"]
    assert "/runs/4wq7n2k3" in found["folder"]


def test_columns_whose_names_have_spaces_are_filtered_in_quotes(visit):
    table = Table(
        columns=[
            Column(name="my loss", kind="number", values=[0.25, 0.75, 1.0]),
            Column(name="reason", kind="text", values=["", "bad thing", "thing bad"]),
        ],
        total=3,
        shown=3,
    )
    found = visit(
        document(run_document(episodes=table)),
        """
        scrolled(page)
        page.wait_for_selector("#episodes tbody tr")
        for each in ('"my loss">0.5', 'reason:"bad thing"', '"thing bad"', '"my', ""):
            page.fill("#episodes input", each)
            found[each] = page.inner_text("#episodes [role=status]")
        """,
    )
    assert found['"my loss">0.5'] == "2 of 3 rows"
    assert found['reason:"bad thing"'] == found['"thing bad"'] == "1 of 3 rows"
    assert found[""] == "3 rows"


@contextlib.contextmanager
def live(made, told, *, event="section"):
    """The address of the page of `made`; what is GET at `next` has the page take this `event`."""
    wanted, ended = threading.Event(), threading.Event()

    class Answer(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_response(200)
            if self.path != "/events":
                self.end_headers()
                if self.path == "/next":
                    wanted.set()
                else:
                    self.wfile.write(page.render(made, stream="events").encode())
                return
            self.send_header("Content-Type", "text/event-stream")
            self.end_headers()
            wanted.wait(60)
            self.wfile.write(f"event: {event}\ndata: ".encode() + msgspec.json.encode(told) + b"\n\n")
            ended.wait(60)

        def log_message(self, *_):
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Answer) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            yield f"http://127.0.0.1:{server.server_port}/"
        finally:
            ended.set()
            server.shutdown()


def test_a_section_that_changes_keeps_where_its_reader_was(playwright):
    made = msgspec.structs.replace(document(run_document(episodes=rows("episode"))), live=True)
    columns = [
        msgspec.structs.replace(column, values=[*column.values, column.values[1]])
        for column in rows("episode").columns
    ]
    more = Table(columns=columns, total=ROWS + 1, shown=ROWS + 1)
    with live(made, {"uid": "u1", "name": "episodes", "value": more}) as address:
        found = browser.visit(
            playwright,
            address,
            """
            page.evaluate("document.getElementById('episodes').scrollIntoView()")
            page.wait_for_selector("#episodes tbody tr")
            page.fill("#episodes input", "succeeded")
            page.focus("#episodes .grid")
            for _ in range(30):
                page.keyboard.press("ArrowDown")
            look = lambda: page.evaluate('''() => [
                document.querySelector("#episodes input").value,
                document.querySelector("#episodes tr.chosen").innerText,
                document.querySelector("#episodes .grid").scrollTop,
                document.activeElement.className,
            ]''')
            found["before"] = look()
            page.evaluate("fetch('next')")
            page.wait_for_selector("#episodes [role=status]:has-text('10,001')")
            found["after"] = look()
            """,
        )
    assert (found["console"], found["elsewhere"]) == ([], [])
    assert found["before"] == found["after"]
    assert found["before"][2] > 0
    assert found["before"][3] == "grid"


@pytest.mark.parametrize("shown", [True, False])
def test_the_chooser_says_which_run_is_shown_though_the_list_has_others(playwright, shown):
    made = msgspec.structs.replace(document(*([run_document()] if shown else [])), live=True)
    others = [{"uid": f"u{n}", "name": f"other-{n}", "outcome": "finished"} for n in (8, 9)]
    with live(made, others, event="runs") as address:
        found = browser.visit(
            playwright,
            address,
            """
            page.evaluate("fetch('next')")
            page.wait_for_selector("select[aria-label=Run]", state="attached")
            found["options"] = page.evaluate("[...document.querySelector('select[aria-label=Run]').options].map((each) => [each.text, each.selected])")
            """,
        )
    assert (found["console"], found["elsewhere"]) == ([], [])
    (first, is_first), *rest = found["options"]
    assert is_first
    assert (" u1 " in first) if shown else (first == "choose a run")
    assert rest == [["other-8 u8 (finished)", False], ["other-9 u9 (finished)", False]]
