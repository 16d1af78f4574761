"""`governor logs`: how lines are shown, which are asked for, and how it ends."""

import asyncio
import json
import time

import pytest
from click.testing import CliRunner

from governor.cli import cli, logs
from governor.cli import run as cli_run
from governor.cli.rendering import lines
from governor.daemon import state_lock
from governor.errors import ExitCode, NoSuchRun, NotPermitted, Unreachable
from governor.messages import OutputLine, OutputPage
from governor.output.lines import as_shown, plain
from governor.output.run_files import RunFiles


def line(text="hello", **more):
    fields = {"at": time.mktime((2026, 1, 31, 12, 0, 0, 0, 0, -1)) + 0.25, "pid": 7, "stream": "stdout"}
    return OutputLine(text=text, conductor="agent.a", **(fields | more))


@pytest.mark.parametrize(
    ("more", "shown"),
    [
        ({}, "agent.a | hello"),
        ({"stream": "stderr", "level": "warning"}, "agent.a WARNING ! hello"),
        ({"task": "fit", "run": 3, "attempt": 2}, "agent.a fit[3].2 | hello"),
        ({"episode": 0}, "agent.a episode 0 | hello"),
        ({"episode": 40, "evaluation": 2}, "agent.a evaluation 2 episode 40 | hello"),
        ({"partial": True}, "agent.a | hello …"),
        ({"text": "", "dropped": (1_234_567, 98 << 20)}, "agent.a | … 1,234,567 lines (98 MiB) dropped"),
        ({"text": "", "dropped": (1, 2048)}, "agent.a | … 1 line (2 KiB) dropped"),
    ],
)
def test_a_line_says_when_and_where_it_was_written(more, shown):
    assert lines.output(line(**more)) == f"2026-01-31 12:00:00.250 {shown}"


def test_a_line_of_today_has_no_date():
    assert lines.output(line(at=time.time()))[2] == ":"


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("\x1b[31mred\x1b[0m", "red"),
        ("\x1b]0;title\x07x\x1b]8;;u\x1b\\y", "xy"),
        ("a\x1b[2Jb\x9b1mc\x1bcd", "abcd"),
        ("  indented\tby a tab", "  indented      by a tab"),
        ("bell\x07 nul\0 back\x08 \u202e bidi \x1b", "bell  nul  back    bidi"),
        ("\udcff", ""),
    ],
)
def test_no_control_sequence_reaches_a_terminal(text, shown):
    assert plain(text) == shown


@pytest.mark.parametrize(
    "printed",
    [
        "INFO: ready",
        "\x1b[32mINFO\x1b[0m: ready",
        "INFO: ready\r",
        "loading 1%\rloading 99%\rINFO: ready\r\r",
    ],
)
def test_a_line_is_looked_at_as_it_is_shown(printed):
    assert as_shown(printed) == "INFO: ready"


class Daemon:
    """In the executor's place: gives these pages."""

    def __init__(self, *pages):
        self.pages = pages
        self.asked = None
        self.follow = None

    async def output_pages(self, asked, *, follow):
        self.asked, self.follow = asked, follow
        for page in self.pages:
            if isinstance(page, BaseException):
                raise page
            yield page


@pytest.fixture
def run(monkeypatch):
    """Runs the verb before a daemon with these pages. Returns the result and the daemon."""

    def made(*arguments, pages):
        daemon = Daemon(*pages)

        def ask(_, question):
            return asyncio.run(question(daemon))

        monkeypatch.setattr(logs.ask, "ask", ask)
        return CliRunner().invoke(cli, ["logs", *arguments]), daemon

    return made


def test_lines_and_what_is_being_written(run):
    page = OutputPage(lines=(line("over"),), cursor={}, unfinished=(line("50%", partial=True),), ended=True)
    result, daemon = run("abc", "walker", pages=[page])
    assert [row.partition("| ")[2] for row in result.output.splitlines()] == ["over", "50% …"]
    assert (daemon.asked.uid, daemon.asked.conductor, daemon.follow) == ("abc", "walker", False)


def test_json_is_one_object_a_line_with_control_sequences_escaped(run):
    text = "\x1b[31m\x9b31m\u202eé\U000e0001"
    page = OutputPage(lines=(line(text),), cursor={}, ended=True)
    result, _ = run("abc", "--json", pages=[page])
    assert '"text":"\\u001b[31m\\u009b31m\\u202eé\\udb40\\udc01"' in result.output
    assert json.loads(result.output)["text"] == text


def test_filters_are_sent(run):
    _, daemon = run(
        "abc",
        *("--task", "fit", "--episode", "3", "--level", "WARNING", "--since", "2026-01-31T12:00", "-f"),
        pages=[],
    )
    asked = daemon.asked
    assert (asked.task, asked.episode, asked.level, daemon.follow) == ("fit", 3, "warning", True)
    assert asked.since == time.mktime((2026, 1, 31, 12, 0, 0, 0, 0, -1))


@pytest.mark.parametrize("text", ["10m", "10min", "600s"])
def test_since_is_a_duration_too(run, text):
    _, daemon = run("abc", "--since", text, pages=[])
    assert time.time() - daemon.asked.since == pytest.approx(600, abs=60)


@pytest.mark.parametrize("text", ["yesterday", "90", "22:50"])
def test_a_since_that_is_neither(run, text):
    result, _ = run("abc", "--since", text, pages=[])
    assert result.exit_code == ExitCode.USAGE
    assert "neither a duration with its unit (90s, 10m, 2h, 1d) nor a time with its date" in " ".join(
        result.output.split()
    )


def test_framed_lines_are_as_they_were_printed_and_say_what_is_missing(capsys):
    found = (line("hello"), line("", dropped=(3, 2048)))
    cli_run._show_output(found, is_raw=True)
    assert capsys.readouterr().err == "hello\nagent.a | … 3 lines (2 KiB) dropped\n"


def test_governor_run_shows_lines_with_their_conductor_and_task(capsys):
    found = (line("hello", task="fit", run=3, attempt=1), line("step", episode=4))
    cli_run._show_output(found, is_raw=False)
    assert capsys.readouterr().err == "agent.a fit[3].1 | hello\nagent.a | step\n"


def test_ctrl_c_detaches(run):
    result, _ = run("abc", "-f", pages=[OutputPage(lines=(line(),), cursor={}), KeyboardInterrupt()])
    assert result.exit_code == ExitCode.INTERRUPTED
    assert "detached; run abc goes on" in result.output


@pytest.fixture
def kept(monkeypatch, tmp_path):
    """A function that appends lines to the files of a run that `governor run` has played, and the state folder of all."""
    monkeypatch.setenv("STATE_DIRECTORY", str(tmp_path))
    monkeypatch.delenv("GOVERNOR_BROKER", raising=False)
    folder = tmp_path / "single" / "maze-1" / "runs" / "abcd" / "logs"
    folder.mkdir(parents=True)

    def append(*texts):
        RunFiles(folder, limit=1 << 20).append("agent.a", [line(text) for text in texts])

    append("hello")
    return append, folder


NO_DAEMON = Unreachable("/run/broker.sock", "no such socket")


def texts(result):
    return [row.partition("| ")[2] for row in result.stdout.splitlines()]


@pytest.mark.parametrize("error", [NO_DAEMON, NoSuchRun("abcd"), NotPermitted("another user's")])
def test_where_no_daemon_has_the_run_its_files_are_read_and_named(run, kept, error):
    result, _ = run("abc", "a", pages=[error])
    assert (result.exit_code, texts(result)) == (0, ["hello"])
    assert f"these are the lines in {kept[1]}" in " ".join(result.stderr.split())


@pytest.mark.parametrize(("uid", "broker"), [("other", ""), ("abcd", "tcp://elsewhere:7000"), ("", "")])
def test_without_its_files_or_with_a_daemon_elsewhere_the_error_is_that_of_the_daemon(
    run, kept, monkeypatch, uid, broker
):
    monkeypatch.setenv("GOVERNOR_BROKER", broker)
    result, _ = run(uid, pages=[NO_DAEMON])
    assert (result.exit_code, result.stdout) == (ExitCode.UNREACHABLE, "")


def test_what_a_daemon_has_shown_is_not_read_again_from_the_files(run, kept):
    result, _ = run("abcd", "-f", pages=[OutputPage(lines=(line("hello"),), cursor={}), NO_DAEMON])
    assert (result.exit_code, texts(result)) == (ExitCode.UNREACHABLE, ["hello"])


def test_a_named_state_folder_is_read_without_asking_a_daemon(run, kept):
    result, daemon = run("abcd", "--state-dir", str(kept[1].parents[2]), pages=[])
    assert (result.exit_code, texts(result), daemon.asked) == (0, ["hello"], None)
    result, _ = run("abcd", "nobody", "--state-dir", str(kept[1].parents[2]), pages=[])
    assert result.exit_code == ExitCode.USAGE
    result, _ = run("other", "--state-dir", str(kept[1]), pages=[])
    assert result.exit_code == ExitCode.NO_SUCH_RUN


def test_files_are_followed_while_a_daemon_is_at_work_there(run, kept, monkeypatch):
    append, folder = kept
    waits = []
    with state_lock.state_lock(folder.parents[2]):

        def sleep(seconds):
            waits.append(seconds)
            append(f"line {len(waits)}")
            if len(waits) == 3:
                (folder.parents[2] / state_lock.NAME).write_text("")  # as at the end of its holder

        monkeypatch.setattr(logs.time, "sleep", sleep)
        result, _ = run("abcd", "-f", pages=[NO_DAEMON])
    assert texts(result) == ["hello", "line 1", "line 2", "line 3"]
