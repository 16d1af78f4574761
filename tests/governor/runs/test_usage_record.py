"""What a run records of what it uses, and of what it is made with."""

import json
import os
import subprocess
import sys

from governor.runs.record import environment, usage
from governor.version import __version__


class Run:
    uid = "u"

    def __init__(self, folder):
        self.folder = folder


def recorder(folder):
    made = usage.UsageRecorder(Run(folder))
    me = {"agent.a": (os.getpid(), 1)}
    return made, lambda: made._record(me)


def test_a_line_has_memory_and_processors_by_conductor(tmp_path):
    _, record = recorder(tmp_path)
    record()
    sum(range(3_000_000))
    record()
    first, last = usage.read(tmp_path / usage.FILE)
    cpu, memory = last.conductors["agent.a"]
    assert 0.05 < cpu < 8
    assert memory > 5 << 20
    assert first.at <= last.at


def test_the_file_is_bounded(tmp_path, monkeypatch):
    monkeypatch.setattr(usage, "MOST", 8)
    made, record = recorder(tmp_path)
    for _ in range(8):
        record()
    assert len(usage.read(tmp_path / usage.FILE)) == 4
    assert made._seconds == 2 * usage.FIRST_SECONDS
    record()
    assert len(usage.read(tmp_path / usage.FILE)) == 5


def test_a_torn_line_is_left_out(tmp_path):
    _, record = recorder(tmp_path)
    record()
    with (tmp_path / usage.FILE).open("ab") as file:
        file.write(b'{"at":12,"cond')
    assert len(usage.read(tmp_path / usage.FILE)) == 1


def test_versions_code_and_machine_are_on_record_once(tmp_path):
    code, folder = tmp_path / "code", tmp_path / "run"
    code.mkdir()
    folder.mkdir()
    (code / "agent.py").write_text("x = 1\n")
    environment.record(folder, str(code))
    found = json.loads((folder / environment.FILE).read_text())
    assert found["run_governor"] == __version__
    assert found["python"] == ".".join(map(str, sys.version_info[:3]))
    assert found["packages"]["pyzmq"]
    assert "(1 file)" in found["code"]
    (code / "agent.py").write_text("x = 2\n")
    environment.record(folder, str(code))
    assert json.loads((folder / environment.FILE).read_text()) == found
    assert environment.of_machine(code)["code"] != found["code"]


def test_data_caches_and_packages_are_no_code(tmp_path):
    (tmp_path / "agent.py").write_text("x = 1\n")
    before = environment.of_machine(tmp_path)["code"]
    for folder in ("__pycache__", ".hidden", "env"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "other.py").write_text("y = 1\n")
    (tmp_path / "env" / "pyvenv.cfg").write_text("")
    (tmp_path / "data.npy").write_bytes(b"1")
    assert environment.of_machine(tmp_path)["code"] == before


def test_what_is_too_much_or_too_slow_is_cut_and_says_so(tmp_path, monkeypatch):
    for name in "abc":
        (tmp_path / f"{name}.py").write_text(name)
    assert "(3 files)" in environment.of_machine(tmp_path)["code"]
    monkeypatch.setattr(environment, "MOST_FILES", 2)
    assert "(the first 2 files)" in environment.of_machine(tmp_path)["code"]
    monkeypatch.setattr(environment, "MOST_SECONDS", -1.0)
    assert "(the first 0 files)" in environment.of_machine(tmp_path)["code"]


def test_gpus_are_those_of_the_driver(tmp_path, monkeypatch):
    monkeypatch.setattr(environment, "_GPUS", tmp_path / "gpus")
    assert environment.of_machine(tmp_path)["gpus"] == []
    for bus, model in (("0000:3b:00.0", "NVIDIA L4"), ("0000:18:00.0", "NVIDIA A100-SXM4-80GB")):
        (tmp_path / "gpus" / bus).mkdir(parents=True)
        text = f"Model: \t\t {model}\nIRQ:   \t\t 42\nBus Location: \t {bus}\n"
        (tmp_path / "gpus" / bus / "information").write_text(text)
    assert environment.of_machine(tmp_path)["gpus"] == ["NVIDIA A100-SXM4-80GB", "NVIDIA L4"]


def test_commit_and_branch_are_read_from_the_repository(tmp_path):
    def git(*arguments):
        command = ["git", "-C", str(tmp_path), "-c", "user.name=a", "-c", "user.email=a@b", *arguments]
        return subprocess.run(command, check=True, capture_output=True, text=True, timeout=30).stdout.strip()

    def found(folder=tmp_path):
        made = environment.of_machine(folder)
        return made["branch"], made["commit"]

    git("init", "--quiet", "--initial-branch", "some/branch")
    assert found() == ("some/branch", None)
    git("commit", "--quiet", "--allow-empty", "-m", "first")
    commit = git("rev-parse", "HEAD")
    (tmp_path / "below").mkdir()
    assert found(tmp_path / "below") == ("some/branch", commit)
    git("pack-refs", "--all")
    assert found() == ("some/branch", commit)
    git("checkout", "--quiet", "--detach")
    assert found() == (None, commit)
