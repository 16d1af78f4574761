"""An administrator's way with the service, on a machine with systemd, in this order: each test goes on where the one before has left it."""

from __future__ import annotations

import json
import re

import pytest

from governor.journal.schema import SCHEMA_VERSION as KNOWN
from governor.version import __version__
from tests.machine import tree
from tests.machine.walked_pages import blocks

pytestmark = [pytest.mark.system, pytest.mark.timeout(900)]

AN_INDEX = f"export PIP_NO_INDEX=1 PIP_FIND_LINKS=/{tree.SOURCE}/wheels"
"""Where the page takes packages from an index, pip finds them in this folder."""
UNIT = "/etc/systemd/system/run-governor.service"
CONFIG = "/etc/run-governor/governor.toml"
CGROUPS = "/sys/fs/cgroup/unified/system.slice/run-governor.service /sys/fs/cgroup/system.slice/run-governor.service"
NO_DROP_IN = f"rm {UNIT}.d/override.conf; systemctl daemon-reload; systemctl restart run-governor"
WAITS = """
import pathlib
import threading

import numpy


class Lake:
    \"\"\"Stands still while there is a file.\"\"\"

    def __init__(self):
        import gymnasium

        self.observation_space = gymnasium.spaces.Box(0.0, 1.0, (1,))
        self.action_space = gymnasium.spaces.Discrete(2)
        self.steps = 0

    def reset(self, *, seed=None, options=None):
        self.steps = 0
        return numpy.zeros(1, numpy.float32), {}

    def step(self, action):
        while pathlib.Path("/srv/lab/held").exists():
            threading.Event().wait(0.05)
        self.steps += 1
        return numpy.zeros(1, numpy.float32), 1.0, self.steps == 5, False, {}


class Walker:
    def __init__(self, *, observation_space, action_space, seed):
        pass

    def act(self, observation, *, explore):
        return 0


def add(context):
    while pathlib.Path("/srv/lab/held").exists():
        threading.Event().wait(0.05)
    return context.run_id
"""
RUN = """
name: lake
conductors:
  environments: {lake: {entry: "waits:Lake"}}
  agents: {walker: {entry: "waits:Walker"}}
phases:
  - {name: walk, simulate: {environment: lake, agents: [walker], episodes: 40}}
  - {name: add, tasks: [{id: add, call: "waits:add", repeat: 8, timeout: 10min}]}
"""
EPISODES, TASKS = 40, 8


def serving(machine):
    machine.until("governor status", wanted="serving")
    return int(machine.unit("MainPID"))


def processes_of(user):
    """A command that prints the command lines of the processes of this user."""
    return f"for each in $(find /proc -maxdepth 1 -user {user}); do cat $each/cmdline | tr '\\0' ' '; done"


def hold(machine):
    machine.run("touch /srv/lab/held")


def let_go(machine):
    machine.run("rm -f /srv/lab/held")


def finished(machine, run):
    """Its end, with all of its work done once."""
    machine.run(f"governor watch {run}", seconds=300)
    shown = machine.run(f"governor results {run}").output
    assert f"{EPISODES} terminated" in shown, shown
    assert f"{TASKS} of {TASKS} succeeded" in shown, shown


def at_work(machine):
    """A run whose first episode stands still."""
    hold(machine)
    machine.write("/srv/lab/waits.py", WAITS)
    machine.write("/srv/lab/run.yaml", RUN)
    run = machine.run("governor submit /srv/lab/run.yaml").output.strip()
    machine.until(f"governor status {run}", wanted="running")
    return run


def test_it_is_installed_without_a_network(machine, walk):
    walk.commands("install-without-network")
    assert machine.unit("ActiveState", "SubState") == {"ActiveState": "active", "SubState": "running"}
    assert "no runs in work or queued" in machine.run("governor status").output
    assert (
        machine.run("stat -c '%U %a' /var/lib/run-governor /run/run-governor").output.split()
        == ["run-governor", "700"] * 2
    )


def test_it_is_installed_from_an_index(machine, walk):
    walk.commands("install", before=f"{AN_INDEX}; cd /{tree.SOURCE}")
    serving(machine)
    assert machine.run(f"ls {UNIT}.before", check=False).code != 0


def test_doctor_finds_no_fault(machine, walk):
    assert "ok     daemon" in walk.commands("doctor")
    asked = "runuser -u run-governor -- governor doctor --state-dir /var/lib/run-governor"
    machine.run(f"install -d -m 700 /run/user/0; XDG_RUNTIME_DIR=/run/user/0 {asked}")


def test_the_first_run(walk):
    walk.commands("first-run")


def test_the_sandbox_is_what_the_page_says(machine):
    shown = machine.run("systemd-analyze security run-governor --no-pager").output
    exposure = float(re.search(r"exposure level for run-governor.service: ([\d.]+)", shown)[1])
    assert exposure <= 2.2


def test_a_good_configuration_is_taken_and_a_bad_one_refused(machine):
    pid = serving(machine)
    good = machine.run(f"cat {CONFIG}").output
    machine.write(CONFIG, good.replace("slots = 1", "slots = 2"))
    machine.run("systemctl reload run-governor")
    assert "2 slots" in machine.run("governor status").output
    machine.write(CONFIG, good.replace("slots = 1", "slots = 0"))
    refused = machine.run("systemctl reload run-governor", check=False)
    assert refused.code != 0
    assert "slots" in machine.unit("StatusText")
    assert any("slots" in entry["MESSAGE"] for entry in machine.entries("-u run-governor"))
    assert "2 slots" in machine.run("governor status").output
    machine.write(CONFIG, good)
    machine.run("systemctl reload run-governor")
    assert machine.unit("ActiveState") == "active"
    assert int(machine.unit("MainPID")) == pid


def test_a_hung_loop_is_caught_by_the_watchdog_and_its_run_goes_on(machine):
    machine.write(
        "/etc/systemd/system/run-governor.service.d/watchdog.conf",
        "[Service]\nWatchdogSec=4\nTimeoutAbortSec=2\n",
    )
    machine.run("systemctl daemon-reload; systemctl restart run-governor")
    pid = serving(machine)
    run = at_work(machine)
    restarts = int(machine.unit("NRestarts"))
    machine.run(f"kill -STOP {pid}")
    machine.until("systemctl show run-governor --property=NRestarts", wanted=f"={restarts + 1}")
    assert serving(machine) != pid
    let_go(machine)
    finished(machine, run)
    assert any("watchdog" in entry["MESSAGE"].lower() for entry in machine.entries("_PID=1 -u run-governor"))
    machine.run(
        "rm /etc/systemd/system/run-governor.service.d/watchdog.conf; systemctl daemon-reload; systemctl restart run-governor"
    )


def test_a_backup_of_a_run_at_work(machine, walk):
    run = at_work(machine)
    walk.commands("backup")
    listed = machine.run("tar tvf /root/*-*-*.tar; stat -c %a /root/*-*-*.tar").output
    assert f"runs/{run}/" in listed
    assert listed.splitlines()[-1] == "600"
    let_go(machine)
    finished(machine, run)


def test_a_killed_daemon_comes_back_and_its_run_goes_on(machine):
    pid = serving(machine)
    run = at_work(machine)
    machine.run(f"kill -KILL {pid}")
    machine.until("systemctl show run-governor --property=MainPID,ActiveState", wanted="ActiveState=active")
    assert serving(machine) != pid
    let_go(machine)
    finished(machine, run)


def test_a_lost_machine_goes_on_with_the_run_after_its_boot(machine):
    run = at_work(machine)
    machine.lose_power()
    machine.boot()
    serving(machine)
    let_go(machine)
    finished(machine, run)


def test_nothing_is_left_after_a_stop(machine):
    """It takes longer than the unit says: the daemon asks for more time."""
    machine.run(f"mkdir -p {UNIT}.d")
    machine.write(f"{UNIT}.d/short.conf", "[Service]\nTimeoutStopSec=100ms\n")
    machine.run("systemctl daemon-reload")
    assert machine.unit("TimeoutStopUSec") == "100ms"
    run = at_work(machine)
    machine.run("systemctl stop run-governor")
    assert machine.unit("ActiveState", "Result") == {"ActiveState": "inactive", "Result": "success"}
    assert machine.run(f"cat $(find {CGROUPS} -name cgroup.procs 2> /dev/null) < /dev/null").output == ""
    assert machine.run(processes_of("run-governor"), check=False).output == ""
    machine.run(f"rm {UNIT}.d/short.conf; systemctl daemon-reload")
    machine.run("systemctl start run-governor")
    let_go(machine)
    finished(machine, run)


def test_a_boot_with_a_bad_configuration_says_why(machine):
    good = machine.run(f"cat {CONFIG}").output
    machine.write(CONFIG, "slots = 'many'\n")
    machine.power_off()
    machine.boot()
    machine.until("systemctl is-failed run-governor", wanted="failed")
    assert machine.unit("ExecMainStatus", "NRestarts") == {"ExecMainStatus": "78", "NRestarts": "0"}
    shown = machine.run("systemctl status run-governor --no-pager", check=False).output
    assert "slots" in shown
    assert CONFIG in shown
    machine.write(CONFIG, good)
    machine.run("systemctl start run-governor")
    serving(machine)


def test_bad_ends_of_a_run_are_in_the_journal_by_its_id(machine):
    machine.write("/srv/lab/faulty.py", "def fit():\n    raise ValueError('no data')\n")
    machine.write(
        "/srv/lab/faulty.yaml",
        'name: faulty\nphases: [{name: fit, tasks: [{id: fit, call: "faulty:fit"}]}]\n',
    )
    run = machine.run("governor submit /srv/lab/faulty.yaml").output.strip()
    assert machine.run(f"governor watch {run}", check=False).code == 1
    found = machine.entries(f"RUN={run} -p warning")
    assert [entry["EVENT"] for entry in found] == ["task.ended", "phase.failed", "run.ended"]
    assert all("no data (faulty.py:2)" in entry["MESSAGE"] for entry in found)


def test_an_incident_from_the_alert_to_the_cause(walk):
    walk.write("incident-code")
    walk.write("incident-run")
    for step in ("incident-alert", "incident-look", "incident-end"):
        walk.commands(step)


def test_an_upgrade_with_runs_queued_and_at_work_and_the_way_back(machine, walk):
    """The newer version has another schema of the journal."""
    first = at_work(machine)
    queued = machine.run("governor submit --name later /srv/lab/run.yaml").output.strip()
    assert "1 run in work, 1 queued" in machine.run("governor status").output
    newer = machine.tree / "root" / "newer"
    tree.put_source(
        newer,
        changed=[
            ("governor/version.py", f'"{__version__}"', '"99.0"'),
            ("governor/journal/schema.py", f"VERSION: Final = {KNOWN}", f"VERSION: Final = {KNOWN + 1}"),
            ("governor/journal/schema.py", "MIGRATIONS: Final = {", f"MIGRATIONS: Final = {{{KNOWN}: '',"),
        ],
    )
    walk.commands("upgrade", before=f"{AN_INDEX}; cd /root/newer")
    assert "governor 99.0 serving" in machine.until("governor status", wanted="serving")
    let_go(machine)
    finished(machine, first)
    finished(machine, queued)


def test_an_older_version_refuses_the_journal_and_the_backup_is_the_way_back(machine, walk):
    runs = machine.run("governor list --json").output
    machine.run("systemctl stop run-governor")
    walk.commands("upgrade-without-network")
    assert machine.run("systemctl start run-governor", check=False).code != 0
    refused = (
        f"is of schema {KNOWN + 1}, this governor knows up to {KNOWN}: use the newer governor that wrote it"
    )
    assert refused in machine.unit("StatusText")
    walk.commands("restore", before=f"{AN_INDEX}; cd /{tree.SOURCE}")
    serving(machine)
    for run in json.loads(runs)["runs"][:2]:
        finished(machine, run["uid"])


@pytest.mark.parametrize("lingers", [False, True])
def test_a_users_own_daemon_ends_with_the_last_session_unless_it_lingers(machine, walk, lingers):
    if not lingers:
        machine.run("useradd --create-home --shell /bin/bash alice")
        walk.commands("install-of-a-user", user="alice", before="export PATH=$PATH:/opt/run-governor/bin")
    else:
        machine.run("loginctl enable-linger alice")
        machine.until(
            "governor --broker $XDG_RUNTIME_DIR/run-governor/broker.sock status",
            wanted="serving",
            user="alice",
        )
    machine.until(processes_of("alice"), wanted="governor serve")
    machine.until("loginctl list-sessions --no-legend | wc -l", wanted="0")
    if lingers:
        machine.run("governor status", user="alice")
        machine.power_off()
        machine.boot()
        machine.until(processes_of("alice"), wanted="governor serve")
        machine.run("loginctl disable-linger alice")
    machine.until(f"{processes_of('alice')} | grep -q 'governor serve' || echo gone", wanted="gone")


def test_a_group_is_let_in(machine, walk):
    machine.run("groupadd researchers; useradd --create-home --shell /bin/bash --groups researchers bob")
    assert machine.run("governor status", user="bob", check=False).code == 77
    config = machine.run(f"cat {CONFIG}").output
    machine.write(CONFIG, f'socket_group = "researchers"\n{config}')
    walk.drop_in("group")
    serving(machine)
    let_go(machine)
    run = machine.run("governor submit /srv/lab/run.yaml", user="bob").output.strip()
    finished(machine, run)
    assert "bob" in machine.run(f"governor status {run} --json").output
    assert machine.run("governor status", user="alice", check=False).code == 77
    machine.write(CONFIG, config)
    machine.run(NO_DROP_IN)


@pytest.mark.parametrize("name", ["gpus", "limits", "keys", "log-namespace"])
def test_the_service_starts_with_a_drop_in_of_the_page(machine, walk, name):
    machine.write("/etc/run-governor/environment", "MODEL_KEY=secret\n", mode=0o600)
    machine.write("/etc/systemd/journald@run-governor.conf", walk.text("log-bounds"))
    walk.drop_in(name)
    pid = serving(machine)
    if name == "keys":
        assert "MODEL_KEY=secret" in machine.run(f"cat /proc/{pid}/environ").output.split("\0")
    if name == "log-namespace":
        machine.until(
            "journalctl --namespace run-governor -u run-governor --output cat", wanted="daemon.ready"
        )
    machine.run(NO_DROP_IN)


def test_a_client_with_a_key_comes_in_and_the_daemons_own_key_is_a_credential(machine, walk):
    machine.run("echo 127.0.0.1 lab7.example.org >> /etc/hosts")
    config = machine.run(f"cat {CONFIG}").output
    machine.write(CONFIG, f"{config}\n{walk.text('network-config')}")
    walk.commands("network-key")
    serving(machine)
    asked = "governor --context /root/ada.toml status"
    assert "serving" in machine.run(asked).output
    walk.commands("network-secret")
    assert machine.run("systemctl restart run-governor", check=False).code == 0
    assert machine.run(asked, check=False).code != 0, "it has made itself another key"
    machine.run("rm /var/lib/run-governor/keys/server.secret")
    walk.drop_in("network-credential")
    serving(machine)
    assert "serving" in machine.run(asked).output
    machine.write(CONFIG, config)
    machine.run(NO_DROP_IN)


def test_after_a_full_disk_the_runs_go_on(machine, walk):
    machine.run(
        "systemctl stop run-governor; mount -t tmpfs -o size=200M small /var/lib/run-governor; systemctl start run-governor"
    )
    serving(machine)
    run = at_work(machine)
    machine.run("dd if=/dev/zero of=/var/lib/run-governor/filler bs=1M status=none", check=False)
    let_go(machine)
    machine.until("systemctl is-failed run-governor", wanted="failed", seconds=120)
    assert machine.unit("ExecMainStatus") == "75"
    assert "disk" in machine.unit("StatusText")
    machine.run("rm /var/lib/run-governor/filler")
    walk.commands("full-disk")
    serving(machine)
    finished(machine, run)


def test_take_it_back(machine, walk):
    walk.commands("uninstall")
    assert machine.run("systemctl status run-governor", check=False).code == 4
    assert (
        machine.run("ls /var/lib/run-governor/governor.db /etc/run-governor/governor.toml").output.count("\n")
        == 2
    )
    assert machine.run("command -v governor", check=False).code != 0


def test_every_block_of_the_pages_was_walked(walk):
    assert walk.done == blocks().keys()
