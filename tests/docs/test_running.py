"""The runner itself: what is right passes, whatever is wrong on a page fails."""

import time

import psutil
import pytest

from tests.docs import running
from tests.docs.pages import PageFault, parse

PASSES = """\
```python title="below/numbers.py"
EVEN = [2, 4]
```

```python title="run.yaml"
name: replaced
```

```yaml title="run.yaml"
name: first
```

```console
$ ls below
numbers.py
$ cat run.yaml && \\
>     echo of $(basename $PWD)
name: first
of my-project
$ false
$ echo $?
1
$ word=kept
$ echo "$word" >&2; echo $HOME $COLUMNS
kept
/tmp/... 80
```

```python
from below.numbers import EVEN

print(sum(EVEN) / 4)
```

```text title="output"
7.25
```

<!-- test: needs a_module_that_nobody_has -->
```python
import a_module_that_nobody_has
```

<!-- test: skip it needs a cluster -->
```console
$ exit 3
```

<!-- test: copy examples/frozen_lake/q_learner.py -->
```console
$ ls *.py examples/frozen_lake
q_learner.py

examples/frozen_lake:
q_learner.py
```

```console
$ echo run dqgtzad5
run dqgtzad5
$ echo again dqgtzad5 dqgt
again dqgtzad5 dqgtzad5
```

```text
not run
```
"""


@pytest.mark.system
def test_a_page_that_is_right_passes():
    running.run(parse(PASSES))


def test_a_later_command_names_the_run_that_is_there():
    page = '```console\n$ printf "run %s3c4d5\\n" a2b\nrun dqgtzad5\n$ echo dqgtzad5 | grep -c a2b3c4d5\n1\n```\n'
    running.run(parse(page))


@pytest.mark.parametrize(
    ("page", "fault"),
    [
        ("```console\n$ echo 1\n2\n```\n", "(?s)page.md:2: .*expected: 2\nfound:    1"),
        ("```console\n$ true\n$ echo $?\n1\n```\n", "(?s)page.md:3: .*expected: 1\nfound:    0"),
        ("```console\n$ echo more\n```\n", "found:    more"),
        ("```console\n$ false\n```\n", "ended with exit code 1, which nothing shows"),
        ("```console\n$ echo secret; exit 3\n...\n```\n", "(?s)ended with exit code 3.*secret"),
        ("```console\n$ no-such-command\n```\n", "command not found"),
        ("```console\nno command\n```\n", "output before the first"),
        ("```console\n```\n", "has a line with"),
        ("```console\n$ a \\\nb\n```\n", "begins with '> '"),
        ("```python\nraise SystemExit(2)\n```\n", "page.md:1: this script ended with exit code 2"),
        ("```python\n1 / 0\n```\n", "ZeroDivisionError"),
        ('```python\nprint(1)\n```\n\n```text title="output"\n2\n```\n', "expected: 2"),
        ('```text title="output"\n2\n```\n', "follows a python block"),
        ("```yaml\nphases: [{name: a, simulat: {}}]\n```\n", "unknown key 'simulat'"),
        ("```toml\nslot = 1\n```\n", "unknown key 'slot'"),
        ("<!-- test: copy examples/none.py -->\n```text\n```\n", "no file examples/none.py"),
        ('```text title="../x"\n```\n', "leads out of the page's folder"),
        ("```console\n$ echo 1\n2\n```\n\n```python\nexit(1)\n```\n", "(?s)page.md:2.*page.md:6"),
    ],
)
def test_a_page_that_is_wrong_fails(page, fault):
    with pytest.raises(PageFault, match=fault):
        running.run(parse(page))


def test_what_does_not_end_is_named_and_killed(monkeypatch):
    monkeypatch.setattr(running, "PAGE_SECONDS", 1.0)
    began = time.monotonic()
    with pytest.raises(PageFault, match="the page's 1 s are over"):
        running.run(parse("```console\n$ echo begun; sleep 4711.5\n```\n"))
    assert time.monotonic() - began < 20
    assert _sleepers() == []


def test_nothing_that_a_page_starts_outlives_it():
    running.run(parse("```console\n$ setsid sleep 4712.5 > /dev/null &\n```\n"))
    assert _sleepers() == []


def _sleepers():
    return [
        process
        for process in psutil.process_iter(["cmdline", "status"])
        if process.info["cmdline"] in (["sleep", "4711.5"], ["sleep", "4712.5"])
        and process.info["status"] != psutil.STATUS_ZOMBIE
    ]


@pytest.mark.system
def test_a_daemon_runs_beside_a_page_that_asks_for_one():
    page = "<!-- test: daemon -->\n\n# Title\n\n```console\n$ governor list --json\n...\n$ governor status\n...\n```\n"
    running.run(parse(page))
