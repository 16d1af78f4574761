"""The steps of installing a service, with programs of systemd that note how they are called."""

from __future__ import annotations

import re
import sys
from configparser import ConfigParser
from pathlib import Path

import pytest
from click.testing import CliRunner
from packaging.requirements import Requirement

from governor.cli import cli
from governor.cli.service.installation import Installation, Places
from governor.errors import NotPermitted, TryAgain, UsageError

BIN = Path(sys.prefix) / "bin"


class Machine:
    """A machine with systemd."""

    def __init__(self, folder, *, user=False):
        self.folder = folder
        self.calls = folder / "calls"
        self.places = Places(
            unit=folder / "system" / "run-governor.service",
            config=folder / "etc" / "governor.toml",
            link=folder / "bin" / "governor",
            sysusers=None if user else folder / "sysusers.d" / "run-governor.conf",
        )
        (folder / "booted").mkdir()
        (folder / "programs").mkdir()
        for name in ("systemctl", "systemd-analyze", "systemd-sysusers"):
            self.program(name, "exit 0")

    def program(self, name, then):
        path = self.folder / "programs" / name
        path.write_text(f'#!/bin/sh\necho "{name} $*" >> {self.calls}\n{then}\n')
        path.chmod(0o755)

    def install(self, **options):
        made = Installation(self.places, **{"dry_run": False, "booted": self.folder / "booted"} | options)
        made.install()
        return made.told

    def uninstall(self):
        made = Installation(self.places, dry_run=False, booted=self.folder / "booted")
        made.uninstall()
        return made.told

    def called(self):
        lines = self.calls.read_text().splitlines() if self.calls.exists() else []
        self.calls.unlink(missing_ok=True)
        return [line.replace(str(self.folder), "") for line in lines]

    def files(self):
        return {
            str(path.relative_to(self.folder))
            for name in ("system", "etc", "bin", "sysusers.d")
            for path in (self.folder / name).rglob("*")
        }


@pytest.fixture
def machine(tmp_path, monkeypatch):
    made = Machine(tmp_path)
    monkeypatch.setenv("PATH", f"{tmp_path / 'programs'}:/usr/bin:/bin")
    monkeypatch.setattr("governor.cli.service.installation._require_readable", lambda _: None)
    return made


ALL = {"system/run-governor.service", "etc/governor.toml", "bin/governor", "sysusers.d/run-governor.conf"}


def test_all_is_written_checked_and_taken_back(machine):
    told = machine.install()
    assert machine.files() == ALL
    assert machine.called() == [
        "systemd-sysusers /sysusers.d/run-governor.conf",
        "systemd-analyze verify --man=no /system/run-governor.service",
        "systemctl daemon-reload",
    ]
    unit = machine.places.unit.read_text()
    assert f"\nExecStart={BIN}/governor serve --config {machine.places.config}\n" in unit
    assert "{" not in unit
    assert machine.places.link.readlink() == BIN / "governor"
    assert [line.split()[0] for line in told] == ["write", "run", "write", "write", "link", "run", "run"]
    machine.uninstall()
    assert machine.called() == ["systemctl disable --now run-governor.service", "systemctl daemon-reload"]
    assert machine.files() == {"etc/governor.toml"}
    machine.uninstall()
    assert machine.files() == {"etc/governor.toml"}


def test_again_it_keeps_what_is_there_and_brings_the_unit_up_to_date(machine):
    machine.install()
    machine.places.config.write_text("slots = 3\n")
    machine.places.unit.write_text("[Unit]\n")
    told = machine.install()
    assert machine.places.config.read_text() == "slots = 3\n"
    assert machine.files() == ALL | {"system/run-governor.service.before"}
    assert f"keep {machine.places.config}" in told
    assert f"replace {machine.places.unit}" in told
    assert machine.places.unit.with_name("run-governor.service.before").read_text() == "[Unit]\n"


def test_a_dry_run_does_nothing(machine):
    told = machine.install(dry_run=True)
    assert machine.files() == set()
    assert machine.called() == []
    assert len(told) == 7


def test_another_command_on_path_is_kept(machine):
    machine.places.link.parent.mkdir()
    machine.places.link.write_text("another")
    told = machine.install()
    assert machine.places.link.read_text() == "another"
    assert any("it is another one" in line for line in told)
    machine.uninstall()
    assert machine.places.link.read_text() == "another"


def test_a_service_of_ones_own_has_no_system_user(machine, tmp_path):
    (tmp_path / "own").mkdir()
    own = Machine(tmp_path / "own", user=True)
    told = own.install()
    assert own.files() == ALL - {"sysusers.d/run-governor.conf"}
    assert [line for line in told if line.startswith("run ")] == [
        f"run systemd-analyze --user verify --man=no {own.places.unit}",
        "run systemctl --user daemon-reload",
    ]
    assert "User=" not in own.places.unit.read_text()


def test_a_unit_that_systemd_refuses_is_told_with_its_words(machine):
    machine.program("systemd-analyze", "echo 'line 3: no such key' >&2; exit 1")
    with pytest.raises(TryAgain, match=r"systemd-analyze verify .* failed \(1\): line 3: no such key"):
        machine.install()


def test_what_is_missing_is_told_before_anything_is_written(machine, tmp_path, monkeypatch):
    with pytest.raises(TryAgain, match="systemd is not at work here"):
        machine.install(booted=tmp_path / "nowhere")
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    with pytest.raises(NotPermitted, match="installed by root; --user"):
        machine.install()
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(UsageError, match="systemctl is not on PATH"):
        machine.install()
    assert machine.files() == set()


@pytest.fixture
def environment(short_path, monkeypatch):
    """A virtual environment of a machine, as root makes it with a umask of 022."""
    for folder in (short_path, short_path / "all"):
        folder.mkdir(exist_ok=True)
        folder.chmod(0o755)
    monkeypatch.setenv("PATH", f"{short_path / 'programs'}:/usr/bin:/bin")
    monkeypatch.setattr("os.geteuid", lambda: 0)
    made = short_path / "all" / "run-governor"
    for name in ("bin/governor", "bin/python3", "lib/python3/site-packages/governor/errors.py", "pyvenv.cfg"):
        (made / name).parent.mkdir(parents=True, exist_ok=True)
        (made / name).touch()
    for path in (made, *made.rglob("*")):
        path.chmod(0o755 if path.is_dir() else 0o644)
    monkeypatch.setattr("sys.prefix", str(made))
    monkeypatch.setattr("sys.executable", str(made / "bin" / "python3"))
    return made


def test_a_program_that_the_services_user_cannot_reach_is_refused(environment, short_path):
    made = Machine(short_path)
    environment.parent.chmod(0o700)
    wanted = f"can't enter {environment.parent}: install governor elsewhere, as into /opt/run-governor"
    with pytest.raises(UsageError, match=wanted):
        made.install()
    assert made.files() == set()


def test_a_python_that_the_services_user_cannot_reach_is_refused(environment, short_path, monkeypatch):
    made = Machine(short_path)
    own = short_path / "root" / ".pyenv"
    own.mkdir(parents=True)
    own.parent.chmod(0o700)
    (own / "python3").touch()
    (environment / "bin" / "python3").unlink()
    (environment / "bin" / "python3").symlink_to(own / "python3")
    with pytest.raises(UsageError, match=f"can't enter {own.parent}: .* a Python that all may start"):
        made.install()
    assert made.files() == set()


@pytest.mark.parametrize(
    ("name", "mode"),
    [
        (".", 0o750),
        ("pyvenv.cfg", 0o640),
        ("bin", 0o711),
        ("lib/python3/site-packages/governor", 0o750),
        ("lib/python3/site-packages/governor/errors.py", 0o640),
    ],
)
def test_a_program_that_root_alone_can_read_is_refused_with_what_mends_it(
    environment, short_path, name, mode
):
    made = Machine(short_path)
    (environment / name).chmod(mode)
    wanted = f"can't read {environment / name}: chmod --recursive o[+]rX {environment}"
    with pytest.raises(UsageError, match=f"{wanted}$"):
        made.install()
    assert made.files() == set()
    (environment / name).chmod(0o755)
    made.install()
    assert made.files() == ALL


def test_the_steps_are_printed_one_a_line(machine):
    done = CliRunner().invoke(cli, ["install-service", "--dry-run"], prog_name="governor")
    assert done.exit_code == 0
    lines = done.stdout.splitlines()
    assert all(line.startswith("would ") for line in lines)
    assert "would run systemctl daemon-reload" in lines


def test_the_pins_are_one_version_each_that_setup_cfg_allows_and_the_digests_of_its_files():
    root = Path(__file__).parents[3]
    text = re.sub(r"#.*\n", "", (root / "requirements.txt").read_text()).replace("\\\n", " ")
    pins = {}
    for line in filter(None, map(str.strip, text.splitlines())):
        requirement, *hashes = re.split(r"\s+--hash=", line)
        pin = Requirement(requirement)
        [version] = pin.specifier
        assert version.operator == "=="
        assert hashes
        assert all(re.fullmatch("sha256:[0-9a-f]{64}", each) for each in hashes)
        if pin.marker is None or pin.marker.evaluate():
            assert pin.name not in pins
            pins[pin.name] = version.version
    setup = ConfigParser()
    setup.read(root / "setup.cfg")
    for line in filter(None, map(str.strip, setup["options"]["install_requires"].splitlines())):
        wanted = Requirement(line)
        assert wanted.specifier.contains(pins[wanted.name]), line
