import pytest

from tests.docs.matching import difference


@pytest.mark.parametrize(
    ("expected", "actual"),
    [
        ("", "\n"),
        ("\nold and new\n", "old and new"),
        ("run dqgtzad5", "run k3m9xw2f"),
        ("in 3.5s, 2min 5s, 850ms", "in 12s, 1.1s, 3min 1s"),
        ("2026-11-22 14:03", "2027-01-02 9:59"),
        ("2026-11-22T14:03:07.125Z", "2027-01-02T09:59:00Z"),
        ("single/lake-20261122-141759-1234/runs", "single/lake-20270101-000000-7/runs"),
        ("mean 0.8421 ± 0.3646, 1.5e-05", "mean -12.5 ± 1, nan"),
        ("pid 4711, exit code 1", "pid 12, exit code 1"),
        ("name   pid   state\nlake   4711  ready", "name  pid  state\nlake  99    ready"),
        ("a  b\n──────\n 1.5   2", "a     b\n────────────────\n22.75   2"),
        ("path /tmp/.../run.yaml", "path /tmp/x y/run.yaml"),
        ("first\n...\nlast", "first\nlast"),
        ("first\n...\nlast", "first\n\nlast\nlast"),
        ("...\nmiddle ...\n...", "a\nb\nmiddle of all\nc"),
        ("...", ""),
        ("strategy", "strategy"),
    ],
)
def test_equal(expected, actual):
    assert difference(expected, actual) == ""


@pytest.mark.parametrize(
    ("expected", "actual"),
    [
        ("", "text"),
        ("text", ""),
        ("one\ntwo", "one"),
        ("one", "one\ntwo"),
        ("one\n\ntwo", "one\ntwo"),
        ("exit code 1", "exit code 2"),
        ("57 episodes", "58 episodes"),
        ("version 0.1.0", "version 0.2.0"),
        ("http://127.0.0.1:80", "http://127.0.1.1:80"),
        ("run dqgtzad5", "run unknown"),
        ("took 3.5s", "took long"),
        ("0.5 left", "a half left"),
        ("at 14:03", "at noon"),
        ("first\n...\nlast", "first\nlast\nmore"),
        ("first\n...\nlast", "first"),
        ("a ... c", "a b"),
        ("ab", "a b"),
        ("Unknown key", "unknown key"),
        ("name  number\nlake  4711", "name  number\nlake  99"),
    ],
)
def test_different(expected, actual):
    assert difference(expected, actual) != ""


def test_the_difference_names_the_line():
    assert difference("one\ntwo\nthree", "one\n2\nthree") == "expected: two\nfound:    2"
    assert difference("one\ntwo", "one") == "expected: two\nfound:    the end of the output"
    assert difference("one", "one\ntwo") == "expected: the end of the output\nfound:    two"


def test_it_tells_which_id_was_found_for_which():
    ids = {}
    assert difference("...\nrun dqgtzad5 of k3m9xw2f\n...", "a\nrun 22222abc of 33333abc\nb", ids) == ""
    assert ids == {"dqgtzad5": "22222abc", "k3m9xw2f": "33333abc"}
