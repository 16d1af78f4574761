"""Pages of reports in a real Chromium: nothing goes wrong in them, and people can use them."""

import contextlib
import http.server
import math
import threading

import msgspec
import pytest

from governor.messages import RunEvent
from governor.report import page
from governor.report.compare import compare
from governor.report.document import Column, ConductorUsage, CurveData, Failure, Table, Usage, Windows
from governor.report.timeline import timeline_of
from tests.support.pages import browser
from tests.support.pages.report_documents import HOSTILE, document, hostile_run, run_document

pytestmark = [pytest.mark.long, pytest.mark.timeout(400)]
ROWS = 10_000
OUTCOMES = ["succeeded", "failed"]


@pytest.fixture(scope="session")
def playwright(tmp_path_factory):
    browser.chromium()
    return browser.install(tmp_path_factory.mktemp("playwright"))


@pytest.fixture
def visit(playwright, tmp_path):
    """Opens the page of a document; asserts that it did nothing that it must not."""

    def opened(made, script="scrolled(page)", **more):
        file = tmp_path / "report.html"
        file.write_text(page.render(made))
        found = browser.visit(playwright, file.as_uri(), script, **more)
        assert (found["console"], found["elsewhere"], found["dialogs"]) == ([], [], [])
        return found

    return opened


def curve(metric="return", shift=0.0):
    keys = [*range(0, 640, 8)]
    mean = [math.sin(key / 60) + shift for key in keys]
    spread = {name: [value + by for value in mean] for name, by in {"p10": -1.0, "p25": -0.5, "p50": 0.0, "p75": 0.5, "p90": 1.0}.items()}  # fmt: skip
    windows = Windows(
        first=keys,
        last=[key + 7 for key in keys],
        step_first=[key * 10 for key in keys],
        step_last=[key * 10 + 79 for key in keys],
        at_first=[key / 100 for key in keys],
        at_last=[key / 100 + 0.07 for key in keys],
        count=[8 for _ in keys],
        mean=mean,
        low=mean,
        high=mean,
        **spread,
    )
    return CurveData(phase="train", mode="train", metric=metric, count=640, windows=windows)


def many():
    """A run of 10,000 episodes and 10,000 tasks."""
    events = []
    for index in range(ROWS):
        place = {"phase": 0, "task": "fit", "run": index}
        started = {**place, "attempt": 1, "pid": index % 4 + 1, "node": "n"}
        events.append(RunEvent(uid="u1", seq=2 * index + 1, at=index / 10, kind="task.started", data=started))
        record = {"task": "fit", "run": index, "outcome": OUTCOMES[index % 10 == 0], "seconds": 0.05}
        ended = {"phase": 0, "record": record}
        events.append(
            RunEvent(uid="u1", seq=2 * index + 2, at=index / 10 + 0.05, kind="task.ended", data=ended)
        )
    usage = Usage(
        at=[*range(50)], conductors={"agent.a": ConductorUsage(cpu=[0.5] * 50, memory=[1 << 27] * 50)}
    )
    return run_document(
        curves=[curve(), curve("steps")],
        timeline=timeline_of(events),
        usage=usage,
        episodes=rows("episode"),
        tasks=rows("task"),
    )


def rows(name):
    return Table(
        columns=[
            Column(name=name, kind="number", unit="id", values=[*range(ROWS)]),
            Column(name="outcome", kind="outcome", values=[int(index % 10 == 0) for index in range(ROWS)], dictionary=OUTCOMES),
            Column(name="return", kind="number", values=[index * 7919 % 10_007 / 7 for index in range(ROWS)]),
        ],
        total=ROWS,
        shown=ROWS,
    )  # fmt: skip


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


def test_a_page_that_is_printed_is_light_as_wide_as_paper_and_has_what_is_folded(visit):
    failures = [
        Failure(phase="train", kind="episode", number=1, outcome="failed", reason=f"bad {n}", first="episode 3", traceback=f"Traceback {n}")
        for n in range(3)
    ]  # fmt: skip
    texts = [Column(name=f"text {n}", kind="text", values=["[0.25,-1.5]" * 15] * 3) for n in range(4)]
    long = Table(columns=texts, total=3, shown=3)
    found = visit(
        document(msgspec.structs.replace(many(), failures=failures, tasks=long)),
        """
        page.emulate_media(color_scheme="dark")
        scrolled(page)
        page.evaluate("scrollTo(0, 700)")
        look = '''() => ({
            colour: getComputedStyle(document.body).backgroundColor,
            tracebacks: [...document.querySelectorAll("#failures pre")].filter((each) => each.checkVisibility()).length,
            rows: document.querySelectorAll("#episodes tbody tr").length,
            last: document.querySelector("#episodes tbody tr:last-child").innerText,
            charts: document.querySelectorAll("#curves canvas, #usage canvas").length,
            right: Math.max(...[...document.querySelectorAll("canvas, table")].map((each) => each.getBoundingClientRect().right)) - document.querySelector("main").getBoundingClientRect().left,
            legend: document.querySelector("#curves .u-legend").innerText.split(/\\s+/).join(" ").trim(),
            scrolled: scrollY,
            buttons: document.querySelectorAll("#episodes th button").length,
        })'''
        page.evaluate(f"addEventListener('beforeprint', () => (window.printed = ({look})()))")
        found["before"] = page.evaluate(look)
        page.pdf(width="210mm", height="297mm")
        found["printed"] = page.evaluate("window.printed")
        page.wait_for_timeout(100)
        found["after"] = page.evaluate(look)
        """,
    )
    before, printed, after = found["before"], found["printed"], found["after"]
    assert before["tracebacks"] == after["tracebacks"] == 1
    assert after == before | {"rows": after["rows"]}
    assert before["colour"] != "rgb(255, 255, 255)"
    assert (printed["colour"], printed["tracebacks"], printed["charts"]) == ("rgb(255, 255, 255)", 3, 4)
    assert (printed["rows"], printed["last"]) == (101, "and 9,900 rows more")
    assert printed["legend"] == "mean"
    assert (before["buttons"] > 0, printed["buttons"]) == (
        True,
        0,
    )  # a header with buttons is not repeated on each page
    assert printed["right"] < 690  # A4 is 718 pixels wide within Chromium's margins


def test_no_column_is_cut_on_paper(visit):
    """Of the metrics of many phases and of many runs."""
    runs = []
    for seed in range(12):
        run = run_document(f"4wq7n2k{seed:02}", seed=seed)
        [phase] = run.summary.phases
        phases = [
            msgspec.structs.replace(
                phase,
                name=f"phase-{n:02}-with-a-long-name",
                metrics={"loss/actor_mean": -0.004265 - n - seed},
            )
            for n in range(20)
        ]
        runs.append(msgspec.structs.replace(run, summary=msgspec.structs.replace(run.summary, phases=phases)))
    found = visit(
        document(*runs, comparison=compare(runs)),
        """
        scrolled(page)
        look = '''() => ({
            right: Math.max(...[...document.querySelectorAll("table")].map((each) => each.getBoundingClientRect().right)) - document.querySelector("main").getBoundingClientRect().left,
            metrics: [...document.querySelectorAll("#summary .scroll:last-child table")].map((each) => [...each.rows[1].cells].map((cell) => cell.innerText)),
            comparison: document.querySelector("#comparison").innerText,
        })'''
        page.evaluate(f"addEventListener('beforeprint', () => (window.printed = ({look})()))")
        found["before"] = page.evaluate(look)
        page.pdf(width="210mm", height="297mm")
        found["printed"] = page.evaluate("window.printed")
        """,
    )
    before, printed = found["before"], found["printed"]
    assert printed["right"] < 690
    assert [len(row) for row in before["metrics"]] == [21]
    assert [len(row) for row in printed["metrics"]] == [7, 7, 7, 3]
    assert {row[0] for row in printed["metrics"]} == {"loss/actor_mean"}
    assert [cell for row in printed["metrics"] for cell in row[1:]] == before["metrics"][0][1:]
    assert "n = 12" in printed["comparison"]


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
