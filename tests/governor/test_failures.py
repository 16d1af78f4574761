"""The reason and the traceback of an exception of user code, whatever its class does."""

from __future__ import annotations

import threading
from functools import partial

import pytest

from governor import failures
from governor.episodes.entries import load
from governor.errors import ConductorError
from governor.failures import TRACEBACK_BYTES, Reason, cause_of, reason_of, shortened, stack_of
from tests.support.user_code import raising


def reason(call, *args):
    with pytest.raises(BaseException) as caught:  # noqa: PT011  # of any class
        call(*args)
    return reason_of(caught.value)


def line_of(text):
    """The line of the module of user code with this text."""
    lines = raising.__loader__.get_source(raising.__name__).split("\n")
    return next(number for number, line in enumerate(lines, start=1) if text in line)


def test_a_reason_ends_in_the_innermost_place_of_user_code():
    found = reason(raising.outer)
    assert found == f"AssertionError: no map (raising.py:{line_of('assert')})"
    outer, inner = found.traceback.index("in outer"), found.traceback.index("in inner")
    assert outer < inner
    assert found.traceback.endswith('    assert is_there, "no map"\nAssertionError: no map')


def test_our_own_frames_are_folded_into_one_line():
    found = reason(load, "tests.support.user_code.raising_import:Maze")
    assert found.startswith(
        "entry 'tests.support.user_code.raising_import:Maze' does not load: ZeroDivisionError"
    )
    assert found.endswith("(raising_import.py:3)")
    assert "  ... 1 frame of run-governor\n" in found.traceback
    assert "governor/episodes/entries.py" not in found.traceback
    assert "importlib" not in found.traceback


def test_a_chain_is_kept_and_its_place_is_that_of_the_last_one():
    found = reason(raising.chained)
    assert found == f"RuntimeError: cannot learn (raising.py:{line_of('from error')})"
    assert "KeyError: 'x'" in found.traceback
    assert "direct cause" in found.traceback


def test_a_group_is_kept_with_all_of_its_exceptions_and_notes():
    text = reason(raising.group).traceback
    assert all(part in text for part in ("ValueError: one", "TypeError: two", "in the second room"))


def test_a_recursion_is_folded():
    found = reason(raising.recursion)
    assert found.startswith("RecursionError: ")
    assert "more frames" in found.traceback
    assert len(found.traceback) < 3_000


def test_a_long_text_keeps_its_beginning_and_its_end():
    found = reason(raising.large, 1_000_000)
    assert len(found) < 400
    assert len(found.traceback.encode()) <= TRACEBACK_BYTES
    assert found.traceback.startswith("Traceback")
    assert found.traceback.endswith("end")
    assert "bytes are left out" in found.traceback
    assert shortened("é" * 20_000).encode()


def test_what_its_class_does_breaks_nothing():
    assert reason(raising.unprintable) == (
        f"Unprintable: (its text cannot be read: RuntimeError) (raising.py:{line_of('raise Unprintable')})"
    )
    found = reason(raising.odd_text)
    found.encode()
    found.traceback.encode()
    assert found.startswith(r"ValueError: \udc80")
    assert "\x1b" in found.traceback  # cleaned where it is printed


def test_an_error_that_cannot_be_rendered_still_has_its_frames(monkeypatch):
    monkeypatch.setattr(failures, "folded", lambda error: 1 / 0)
    monkeypatch.setattr(failures, "_rendered", {})
    found = reason(raising.outer)
    assert found.endswith(f"no map (raising.py:{line_of('assert')})")
    assert f'raising.py", line {line_of("assert")}\nAssertionError: no map' in found.traceback


def test_a_syntax_error_is_placed_in_the_file_that_has_it():
    assert (
        reason(compile, "x = (", "/project/agent.py", "exec")
        == "SyntaxError: '(' was never closed (agent.py:1)"
    )


def test_no_value_of_a_variable_is_told():
    assert "secret-word" not in reason(partial(raising.with_secret, "secret-word")).traceback


def test_an_error_of_ours_keeps_its_reason_and_the_traceback_below_it():
    def wrap():
        try:
            raising.outer()
        except AssertionError as error:
            raise ConductorError("it does not start") from error

    found = reason(wrap)
    assert found == "it does not start"
    assert "AssertionError: no map" in found.traceback
    assert Reason("no", "text").within("here") == "here: no"
    assert Reason("no", "text").within("here").traceback == "text"


def test_an_error_that_comes_again_is_rendered_once_whatever_its_text(monkeypatch):
    rendered = []
    real = failures.folded
    monkeypatch.setattr(failures, "folded", lambda error: rendered.append(error) or real(error))
    monkeypatch.setattr(failures, "_rendered", {})
    found = [reason(raising.large, size) for size in (5, 6, 900)]
    assert len(rendered) == 1
    assert [told.traceback.rpartition("ValueError: ")[2] for told in found] == [
        "yyyyyend",
        "yyyyyyend",
        "y" * 900 + "end",
    ]
    for number in range(2 * failures.SAME):
        reason(raising.chained, number)
    assert len(failures._rendered) <= failures.SAME


def test_the_stack_of_a_thread_that_hangs():
    begun, go_on = threading.Event(), threading.Event()
    thread = threading.Thread(target=raising.hang, args=(begun, go_on))
    thread.start()
    begun.wait(20)
    found = stack_of(thread.ident, "longer than 1 s")
    go_on.set()
    thread.join(20)
    assert found == f"longer than 1 s (raising.py:{line_of('go_on.wait')})"
    assert "in hang" in found.traceback
    assert stack_of(thread.ident, "longer") == "longer"


def test_a_cause_has_no_numbers_but_that_of_its_place():
    assert cause_of("step: no map 12 at 0x7f3a (maze.py:28)") == "step: no map # at # (maze.py:28)"
    assert cause_of("longer than 1.5 s") == "longer than #.# s"


# -- secrets -------------------------------------------------------------------------------------------------------


def test_secrets_are_masked_in_reasons_and_tracebacks_also_once_user_code_has_removed_them(monkeypatch):
    monkeypatch.setenv(failures.SECRETS, "KEY,OTHER")
    monkeypatch.setenv("KEY", "sk-12345678")

    def told():
        error = PermissionError("401: sk-12345678 is no key")
        reason = failures.reason_of(error)
        return failures.one_line(error), str(reason), reason.traceback

    for text in told():
        assert "401: [secret KEY] is no key" in text
        assert "sk-12345678" not in text
    monkeypatch.delenv("KEY")
    assert all("[secret KEY]" in text for text in told())
    monkeypatch.setenv("KEY", "of another run")
    assert all("sk-12345678" in text for text in told())
    assert failures.utf8("of another run: \udcff") == "[secret KEY]: \\udcff"
    monkeypatch.delenv(failures.SECRETS)
    assert failures.utf8("of another run") == "of another run"
