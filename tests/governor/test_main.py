import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import click
import pytest

from governor.__main__ import verb_of
from governor.cli import VERBS, cli


@pytest.mark.parametrize(
    ("line", "verb"),
    [
        ("serve --slots 2", "serve"),
        ("--broker serve status", "status"),
        ("--broker=x run f", "run"),
        ("--debug run f", "run"),
        ("run --help", None),
        ("--version", None),
        ("--help serve", None),
        ("", None),
    ],
)
def test_the_verb_is_seen_before_anything_is_imported(line, verb):
    assert verb_of(line.split()) == verb


def loaded_by(code: str) -> set[str]:
    program = f"import sys, json\n{code}\nprint(json.dumps(list(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True)
    return set(json.loads(done.stdout.splitlines()[-1]))


def test_a_client_verb_loads_nothing_heavy():
    loaded = loaded_by(
        "import governor.__main__, governor.cli.questions, governor.cli.submit, governor.cli.watch, governor.executor"
    )
    assert not loaded & {"pydantic", "ray", "rich", "gymnasium", "numpy", "aiomultiprocess", "yaml"}


def test_the_forkserver_starts_before_the_daemon_loads_what_is_heavy():
    loaded = loaded_by("import governor.cli.serve, governor.config, governor.daemon.folders")
    assert not loaded & {"structlog", "states", "rich", "numpy", "ray", "zmq", "yaml"}


def test_the_guard_stands_before_click():
    assert "click" not in loaded_by("import governor.__main__, governor.processes.guard")


def test_every_verb_has_its_place_and_help():
    for name in VERBS:
        command = cli.get_command(click.Context(cli), name)
        assert command.name == name
        assert command.help
        assert len(command.short_help or "") <= 45, "in `governor --help` it has room in 60 columns"


@pytest.mark.parametrize("missing", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
def test_a_missing_stream_gets_no_descriptor_of_something_else(missing):
    program = (
        "import os, sys\nfrom governor.__main__ import open_streams\nopen_streams()\n"
        "assert all(os.path.exists(f'/proc/self/fd/{number}') for number in range(3))\n"
        "print('x', file=sys.stderr)\nsys.exit(os.dup(0) < 3)"
    )
    command = ["sh", "-c", f'exec "$0" -c "$1" {missing}', sys.executable, program]
    assert subprocess.run(command, check=False).returncode == 0


@pytest.mark.parametrize(
    ("encoding", "written"),
    [
        ("latin-1", b"? caf\xe9\n"),
        ("utf-8", "\u2500 caf\xe9\n".encode()),
        ("ascii", b"? caf?\n"),
        ("ascii:surrogateescape", b"? caf?\n"),  # what Python has in the locale C, with PYTHONUTF8=0
    ],
)
def test_what_an_encoding_does_not_have_ends_no_output(encoding, written):
    program = (
        "from governor.__main__ import replace_what_has_no_code\nreplace_what_has_no_code()\n"
        "print('\u2500 caf\xe9')"
    )
    environ = {**os.environ, "PYTHONIOENCODING": encoding}
    done = subprocess.run([sys.executable, "-c", program], env=environ, capture_output=True, check=True)
    assert done.stdout == written


def test_files_of_ours_are_utf8_whatever_the_locale(tmp_path):
    environ = {**os.environ, "LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    program = "from governor.report import page\npage._assets(), page._template()"
    subprocess.run([sys.executable, "-c", program], env=environ, check=True)
    init = [sys.executable, "-m", "governor", "init", str(tmp_path / "new")]
    subprocess.run(init, env=environ, check=True)


def test_the_part_of_a_name_that_is_no_text_ends_no_output():
    program = "from governor.__main__ import replace_what_has_no_code\nreplace_what_has_no_code()\nprint('caf\\udce9')"
    environ = {**os.environ, "PYTHONIOENCODING": "utf-8"}
    done = subprocess.run([sys.executable, "-c", program], env=environ, capture_output=True, check=True)
    assert done.stdout == b"caf\\udce9\n"


@pytest.mark.parametrize("option", ["--help", "--version"])
def test_help_on_a_full_disk_is_75(option):
    with Path("/dev/full").open("wb") as full:
        done = subprocess.run(
            [sys.executable, "-m", "governor", option],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
    assert done.returncode == 75
    assert done.stderr.startswith(
        "governor: error: standard output, or a file, can't be written: No space left"
    )
    assert "Traceback" not in done.stderr


@pytest.mark.ray
def test_a_run_without_standard_error_has_its_end():
    with tempfile.TemporaryDirectory(prefix="gov-") as short:  # sockets are below it
        folder = Path(short)
        (folder / "run.yaml").write_text(
            "name: x\nphases: [{name: x, tasks: [{id: x, call: 'textwrap:dedent', args: {text: x}}]}]\n"
        )
        environ = {**os.environ, "HOME": short, "XDG_STATE_HOME": short, "TMPDIR": short}
        command = ["sh", "-c", 'exec "$0" -m governor run run.yaml 2>&-', sys.executable]
        done = subprocess.run(
            command, cwd=short, env=environ, check=False, stdout=subprocess.PIPE, timeout=120
        )
        assert done.returncode == 0, done.stdout
        assert not list(folder.glob("governor-*"))
