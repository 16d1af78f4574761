from pathlib import Path

import pytest

from governor import config
from governor.errors import ConfigError
from governor.units import durations

REPOSITORY = Path(__file__).parents[2]


def test_defaults_follow_systemd_then_xdg_then_home(monkeypatch):
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    home = {"HOME": "/home/u"}
    xdg = {**home, "XDG_STATE_HOME": "/x/state", "XDG_RUNTIME_DIR": "/x/run"}
    systemd = {**xdg, "STATE_DIRECTORY": "/s/state:/s/other", "RUNTIME_DIRECTORY": "/s/run"}
    found = [
        (made.state_dir, made.runtime_dir) for made in (config.load(environ=e) for e in (home, xdg, systemd))
    ]
    assert found == [
        (Path("/home/u/.local/state/run-governor"), Path("/home/u/.local/state/run-governor/run")),
        (Path("/x/state/run-governor"), Path("/x/run/run-governor")),
        (Path("/s/state"), Path("/s/run")),
    ]


def test_the_file_wins_over_defaults_and_options_over_the_file(tmp_path):
    file = tmp_path / "governor.toml"
    file.write_text('slots = 3\nqueue_limit = 5\nstop_grace = "1min"\n[ray]\naddress = "head:6379"\n')
    made = config.load(file, options={"slots": 4, "log_level": None, "ray.num_cpus": 8, "runtime_dir": "/r"})
    assert (made.slots, made.queue_limit, made.stop_grace, made.log_level) == (4, 5, 60, "info")
    assert made.ray == config.RayConfig(address="head:6379", num_cpus=8)
    assert made.client_endpoint == "ipc:///r/broker.sock"
    assert made.private_endpoint == "ipc:///r/private.sock"
    assert made.worker_endpoint == "ipc:///r/workers.sock"


def test_the_home_folder_of_a_user_that_is_not_there():
    with pytest.raises(
        ConfigError, match="state_dir: ~nobody-here/y: no user of that name has a home folder"
    ):
        config.load(options={"state_dir": Path("~nobody-here/y")})


def test_a_folder_whose_name_is_no_text_is_refused(monkeypatch):
    """No message and no record could name it."""
    monkeypatch.setenv("HOME", "/srv/\udcff")
    for folder in ("/srv/\udcff/state", Path("/srv/\udcff/state"), "~/state"):
        with pytest.raises(ConfigError, match=r"state_dir: '/srv/\\udcff/state' is not valid UTF-8"):
            config.load(options={"state_dir": folder})
    config.load(options={"state_dir": "/srv/größe"})


def test_all_faults_are_listed(tmp_path):
    file = tmp_path / "governor.toml"
    file.write_text(
        'slots = 0\nslot = 1\nlog_level = "loud"\nstop_grace = "soon"\nstate_dir = 3\n[ray]\naddress = "x"\nnum_cpus = true\nadress = "y"\n'
    )
    with pytest.raises(ConfigError) as caught:
        config.load(file, options={"runtime_dir": "/" + "x" * 80})
    said = dict(fault.split(": ", 1) for fault in caught.value.faults if not fault.startswith("unknown"))
    assert "unknown key 'slot'; did you mean 'slots'?" in caught.value.faults
    assert said.pop("runtime_dir").startswith("/xxx")
    assert said == {
        "slots": "must be greater than or equal to 1, not 0",
        "log_level": "must be one of debug, info, warning, error, not the text 'loud'",
        "stop_grace": f"'soon' is no duration: {durations.HOW_TO}",
        "state_dir": "must be a path, not 3",
        "ray.address": "must be 'local' or 'host:port', not 'x'",
        "ray.num_cpus": "must be a whole number, not true",
        "ray": "unknown key 'adress'; did you mean 'address'?",
    }


def test_a_byte_order_mark_is_no_fault(tmp_path):
    file = tmp_path / "governor.toml"
    file.write_bytes(b"\xef\xbb\xbfslots = 3\n")
    assert config.load(file).slots == 3


@pytest.mark.parametrize("address", ["ray://10.0.0.1:10001", "http://10.0.0.1:8265"])
def test_an_address_of_ray_has_no_scheme(address):
    """A run would end with: no Ray at ray://10.0.0.1:10001, name or service not known."""
    with pytest.raises(ConfigError, match=r"ray\.address: must be 'local' or 'host:port', not '"):
        config.load(options={"ray.address": address})


def test_files_that_are_no_toml(tmp_path):
    (tmp_path / "bad.toml").write_text("a = = 1")
    for name, said in [("bad.toml", "is not TOML"), ("missing.toml", "No such file")]:
        with pytest.raises(ConfigError, match=said):
            config.load(tmp_path / name)


@pytest.mark.parametrize("pattern", ["lab", "env:", ":x", ""])
def test_what_is_no_pattern_of_entries_is_refused(pattern):
    good = ["*", "lab.*:*", "command:/opt/*", "env:HF_*"]
    assert config.load(options={"entries.allow": good}).entries.allow == (*good,)
    with pytest.raises(
        ConfigError, match=r"entries.allow\[4\]: '.*' is no pattern: write module:name, command:PROGRAM"
    ):
        config.load(options={"entries.allow": [*good, pattern]})


@pytest.mark.parametrize("given", ["./notify.sh", "", "ftp://lab/x", {"url": "hooks.example.org"}])
def test_a_hook_that_is_no_url_is_told_how_urls_and_commands_are_written(given):
    with pytest.raises(ConfigError) as caught:
        config.load(options={"hooks.on_end": given})
    [fault] = caught.value.faults
    assert fault.startswith(
        "hooks.on_end.url: must be an URL, as https://hooks.example.org/runs, or, for a command, a list"
    )


@pytest.mark.parametrize(
    ("given", "fault"),
    [
        ("http://lab:99999/x", "hooks.on_end.url: is no URL: Port out of range 0-65535"),
        ("http://lab:0/x", "hooks.on_end.url: is no URL that can be reached: nothing listens at port 0"),
        ("http://[::1/x", "hooks.on_end.url: is no URL: Invalid IPv6 URL"),
        (["", "lab"], "hooks.on_end.command: its first word is empty, and must be a program"),
    ],
)
def test_a_hook_that_can_never_be_reached_is_refused_at_once(given, fault):
    with pytest.raises(ConfigError) as caught:
        config.load(options={"hooks.on_end": given})
    assert caught.value.faults == (fault,)


@pytest.mark.parametrize(
    ("gpus", "faults"),
    [
        ([0, "1"], ["machine.gpus[0]: must be a text, not 0"]),
        (["0", ""], ["machine.gpus[1]: must have at least 1 character"]),
        (["0", "1", "0"], ["machine.gpus: '0' stands twice"]),
        ("0,1", ["machine.gpus: must be a whole number, not the text '0,1'"]),
        (-1, ["machine.gpus: must be greater than or equal to 0, not -1"]),
    ],
)
def test_gpus_that_are_no_number_and_no_names_are_one_fault(gpus, faults):
    with pytest.raises(ConfigError) as caught:
        config.load(options={"machine.gpus": gpus})
    assert list(caught.value.faults) == faults
    assert config.load(options={"machine.gpus": ["0", "2"]}).machine.gpus == ("0", "2")
    assert config.load(options={"machine.gpus": 0}).machine.gpus == 0


def test_the_sample_shows_the_defaults():
    sample = config.load(REPOSITORY / "governor/cli/service/files/governor.toml", environ={"HOME": "/home/u"})
    assert sample == config.load(environ={"HOME": "/home/u"})


def test_bounds_of_what_is_kept_and_of_the_disk(tmp_path):
    assert (config.load().keep_runs, config.load().keep_days, config.load().disk_reserve) == (
        None,
        None,
        64 << 20,
    )
    file = tmp_path / "governor.toml"
    file.write_text('keep_runs = 0\nkeep_days = 0.5\ndisk_reserve = "2GiB"\n')
    made = config.load(file)
    assert (made.keep_runs, made.keep_days, made.disk_reserve) == (0, 0.5, 2 << 30)
    file.write_text('keep_runs = -1\nkeep_days = "week"\ndisk_reserve = "much"\n')
    with pytest.raises(ConfigError) as caught:
        config.load(file)
    assert {fault.partition(":")[0] for fault in caught.value.faults} == {
        "keep_runs",
        "keep_days",
        "disk_reserve",
    }


@pytest.mark.parametrize(
    "listen", ["127.0.0.1:9464", "[::1]:9464", "localhost:0", "127.8.0.1:1", "unix:/run/x/metrics.sock"]
)
def test_metrics_are_served_on_this_machine(tmp_path, listen):
    file = tmp_path / "g.toml"
    file.write_text(f'[metrics]\nlisten = "{listen}"\n')
    assert config.load(file).metrics.listen == listen


@pytest.mark.parametrize(
    ("listen", "why"),
    [
        ("0.0.0.0:9464", "0.0.0.0 can be reached from other machines"),
        ("192.0.2.1:9464", "can be reached from other machines"),
        ("[::]:9464", "can be reached from other machines"),
        ("example.org:80", "can be reached from other machines"),
        ("127.0.0.1", "must be 'unix:/PATH' or a loopback address"),
        ("http://127.0.0.1:9464", "must be 'unix:/PATH' or a loopback address"),
        ("127.0.0.1:70000", "must be 'unix:/PATH' or a loopback address"),
        (":9464", "must be 'unix:/PATH' or a loopback address"),
        ("unix:metrics.sock", "must name an absolute path"),
        ("unix:/" + "x" * 200, "must name an absolute path of at most 107 bytes"),
    ],
)
def test_and_nowhere_else(tmp_path, listen, why):
    file = tmp_path / "g.toml"
    file.write_text(f'[metrics]\nlisten = "{listen}"\n')
    with pytest.raises(ConfigError) as caught:
        config.load(file)
    assert why in caught.value.faults[0]
    assert caught.value.faults[0].startswith("metrics.listen: ")
