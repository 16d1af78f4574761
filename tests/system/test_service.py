"""The daemon as a systemd service: which messages it sends to its NOTIFY_SOCKET, a real datagram socket, and when."""

from __future__ import annotations

import asyncio
import grp
import os
import signal
import socket
import sys
from pathlib import Path

import pytest

from governor.errors import ExitCode
from governor.executor import Executor
from governor.journal.journal import Journal
from governor.messages import RunResult

pytestmark = pytest.mark.system

TASK_FREE_RUN = {
    "name": "walk",
    "conductors": {
        "environments": {"lake": {"entry": "gymnasium:FrozenLake-v1"}},
        "agents": {"walker": {"entry": "walker:Walker"}},
    },
    "phases": [{"name": "p", "simulate": {"environment": "lake", "agents": ["walker"], "episodes": 3}}],
}
WALKER = """
class Walker:
    def __init__(self, *, observation_space, action_space, seed):
        self.space = action_space
        self.space.seed(seed)

    def act(self, observation, *, explore):
        return int(self.space.sample())
"""


class Service:
    """`governor serve`, and the service manager's end of the notify socket."""

    def __init__(self, folder, *, watchdog: float | None = None, config: str = "") -> None:
        self.folder = folder
        self.config = folder / "governor.toml"
        self.config.write_text(config)
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.socket.bind(str(folder / "notify"))
        self.socket.setblocking(False)
        self.endpoint = f"ipc://{folder}/run/broker.sock"
        self.environ = {
            **os.environ,
            "NOTIFY_SOCKET": str(folder / "notify"),
            "STATE_DIRECTORY": str(folder / "state"),
            "RUNTIME_DIRECTORY": str(folder / "run"),
        }
        if watchdog is not None:
            self.environ["WATCHDOG_USEC"] = str(int(watchdog * 1e6))

    async def __aenter__(self):
        arguments = ("-m", "governor", "serve", "--config", str(self.config))
        self.process = await asyncio.create_subprocess_exec(
            sys.executable, *arguments, env=self.environ, stderr=asyncio.subprocess.PIPE
        )
        return self

    async def __aexit__(self, *_):
        if self.process.returncode is None:
            self.process.terminate()
        await self.process.communicate()
        self.socket.close()

    async def messages_until(self, wanted: str) -> list[str]:
        """Datagrams up to the first one that contains `wanted`."""
        seen = []
        async with asyncio.timeout(20):
            while not seen or wanted not in seen[-1]:
                seen.append((await asyncio.get_running_loop().sock_recv(self.socket, 4096)).decode())
        return seen

    async def reload(self, *arguments: str) -> tuple[int, str, str]:
        """`governor reload`, as the unit calls it: exit code, output, errors."""
        command = (sys.executable, "-m", "governor", "reload", *arguments)
        reloading = await asyncio.create_subprocess_exec(
            *command, env=self.environ, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
        )
        async with asyncio.timeout(30):
            output, errors = await reloading.communicate()
        return reloading.returncode, output.decode(), errors.decode()

    async def logged(self, wanted: str) -> str:
        async with asyncio.timeout(20):
            while line := (await self.process.stderr.readline()).decode():
                if wanted in line:
                    return line
        raise AssertionError(f"ended before {wanted}")


async def test_ready_is_sent_when_the_daemon_accepts_runs_and_each_transition_sends_a_status(short_path):
    (short_path / "walker.py").write_text(WALKER)
    async with Service(short_path) as service:
        assert "STATUS=no run in work; 0 queued" in (await service.messages_until("READY=1"))[-1]
        async with Executor(service.endpoint, timeout=2.0) as executor:
            uid = await executor.submit(TASK_FREE_RUN, folder=short_path)
            seen = await service.messages_until("no run in work")
        states = ["starting", "running", "finalizing", "stopping"]
        assert [line for line in seen if uid in line] == [f"STATUS={uid} {s}; 0 queued" for s in states]
        service.process.terminate()
        last = (await service.messages_until("STOPPING=1"))[-1]
        assert "EXTEND_TIMEOUT_USEC=45000000" in last.splitlines()
        assert await service.process.wait() == ExitCode.DONE
        await service.messages_until("STATUS=stopped")
    assert list((short_path / "run").iterdir()) == [], "sockets were left behind"


async def test_the_event_loop_feeds_the_watchdog(short_path):
    async with Service(short_path, watchdog=0.4) as service:
        await service.messages_until("READY=1")
        await _times(3, service, "WATCHDOG=1")
        os.kill(service.process.pid, signal.SIGSTOP)
        # Messages from before the stop are received first: a stopped loop sends no more.
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(_times(9, service, "WATCHDOG=1"), 1.0)
        os.kill(service.process.pid, signal.SIGCONT)
        await service.messages_until("WATCHDOG=1")


async def _times(number, service, wanted):
    for _ in range(number):
        await service.messages_until(wanted)


async def test_sighup_reloads_the_whole_configuration_or_nothing(short_path):
    async with Service(short_path, config="queue_limit = 5\n") as service:
        await service.messages_until("READY=1")
        service.config.write_text("queue_limit = 7\n")
        service.process.send_signal(signal.SIGHUP)
        assert "RELOADING=1" in (await service.messages_until("RELOADING=1"))[-1]
        assert "queue_limit" in await service.logged("daemon.reloaded")
        await service.messages_until("READY=1")
        service.config.write_text("queue_limit = 9\nlog_level = 'debug'\n")
        service.process.send_signal(signal.SIGHUP)
        refused = await service.logged("daemon.reload")
        assert "daemon.reload_refused" in refused
        assert "log_level takes a restart" in refused


async def test_reload_waits_for_the_answer_and_prints_the_faults_of_a_refused_configuration(short_path):
    async with Service(short_path, config="queue_limit = 5\n") as service:
        await service.messages_until("READY=1")
        await service.logged("daemon.ready")
        service.config.write_text("queue_limit = 7\nkeep_runs = 9\n")
        assert await service.reload() == (
            ExitCode.DONE,
            "queue_limit, keep_runs changed\n",
            "",
        )
        assert await service.reload("--json") == (ExitCode.DONE, '{"type":"Reloaded","changed":[]}\n', "")

        service.config.write_text("queue_limit = 9\nlog_level = 'debug'\nray.num_cpus = 7\n")
        code, output, errors = await service.reload()
        assert (code, output) == (ExitCode.BAD_CONFIGURATION, "")
        assert errors == (
            "governor: error: the configuration was not taken over: bad configuration\n"
            "  ray takes a restart of the daemon\n  log_level takes a restart of the daemon\n"
        )
        assert "reload refused: ray takes a restart" in (await service.messages_until("reload refused"))[-1]
        service.config.write_text("queue_limit = 'x'\nslot = 3\n")
        code, _, errors = await service.reload()
        assert code == ExitCode.BAD_CONFIGURATION
        assert f"{service.config}: bad configuration\n  queue_limit: must be" in errors
        assert "  unknown key 'slot'; did you mean 'slots'?\n" in errors
        assert (
            "reload refused: queue_limit: must be"
            in (await service.messages_until("reload refused: queue"))[-1]
        )

        service.config.write_text("queue_limit = 7\nkeep_runs = 9\n")
        assert (await service.reload())[0] == ExitCode.DONE
        assert (await service.messages_until("STATUS="))[-1] == "STATUS=no run in work; 0 queued"
        service.process.send_signal(signal.SIGHUP)
        assert "READY=1" in (await service.messages_until("READY=1"))[-1]
        service.process.terminate()
        _, logged = await service.process.communicate()
    assert b"daemon.reloaded" in logged
    assert b"daemon.ready" not in logged, "it has been ready all the time"


def ended(uid):
    return RunResult(
        uid=uid,
        name="n",
        outcome="finished",
        reason="",
        submitted_at=1.0,
        started_at=None,
        ended_at=2.0,
        phases=(),
        folder="/",
    )


async def test_ended_runs_beyond_the_bounds_are_pruned_and_a_reload_changes_the_bounds(short_path):
    (short_path / "state").mkdir()
    journal = Journal(short_path / "state" / "governor.db")
    for uid in ("aaaa", "bbbb", "cccc"):
        spec = {**TASK_FREE_RUN, "name": uid}
        await journal.write(lambda tx, u=uid, s=spec: tx.submit(uid=u, key=None, name=u, spec=s, folder="/"))
        await journal.write(lambda tx, u=uid: (tx.outcome(ended(u)), tx.ended(u)))
        (short_path / "state" / "runs" / uid).mkdir(parents=True)
    await journal.close()
    async with Service(short_path, config="keep_runs = 2\n") as service:
        await service.messages_until("READY=1")
        assert "aaaa" in await service.logged("run.pruned")
        service.config.write_text("keep_runs = 1\n")
        service.process.send_signal(signal.SIGHUP)
        assert "bbbb" in await service.logged("run.pruned")
        async with Executor(service.endpoint) as executor:
            assert [run.uid for run in (await executor.list()).runs] == ["cccc"]
            assert (await executor.prune(keep_runs=0, dry_run=True)).uids == ("cccc",)
            assert (await executor.prune(keep_runs=0)).uids == ("cccc",)
        assert "cccc" in await service.logged("run.pruned")
    assert list((short_path / "state" / "runs").iterdir()) == []


async def test_a_damaged_journal_ends_the_start_with_instructions(short_path):
    (short_path / "state").mkdir()
    path = short_path / "state" / "governor.db"
    journal = Journal(path)
    await journal.write(
        lambda tx: tx.submit(uid="r1", key=None, name="n", spec={"x": "y" * 50_000}, folder="/")
    )
    await journal.close()
    path.write_bytes(path.read_bytes()[:-8192] + b"\xaa" * 8192)
    async with Service(short_path) as service:
        _, output = await service.process.communicate()
        assert service.process.returncode == ExitCode.INTERNAL
        assert "governor.db is damaged: " in (await service.messages_until("STATUS="))[-1]
    assert "governor.db is damaged: " in output.decode()
    assert "; put a copy of it back, or move" in output.decode()
    assert sorted(entry.name for entry in path.parent.iterdir()) == ["governor.db", "governor.lock"]


async def test_a_refused_configuration_is_the_status(short_path):
    async with Service(short_path, config="slots = 0\n") as service:
        assert await service.process.wait() == ExitCode.BAD_CONFIGURATION
        assert "slots" in (await service.messages_until("STATUS="))[-1]


@pytest.mark.long
async def test_if_six_daemons_start_at_once_one_serves_and_the_others_end_with_try_again(short_path):
    environ = {
        **os.environ,
        "STATE_DIRECTORY": str(short_path / "state"),
        "RUNTIME_DIRECTORY": str(short_path / "run"),
        "PYTHONPATH": str(Path(__file__).parents[2]),
    }
    environ.pop("NOTIFY_SOCKET", None)
    for _ in range(3):
        ready = asyncio.Event()
        started = [
            await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "governor", "serve"), env=environ, stderr=asyncio.subprocess.PIPE
            )
            for _ in range(6)
        ]
        ends = {asyncio.create_task(_ended(each, ready)): each for each in started}
        try:
            async with asyncio.timeout(60):
                left = set(ends)
                while len(left) > 1:
                    _, left = await asyncio.wait(left, return_when=asyncio.FIRST_COMPLETED)
                await ready.wait()
            [winner] = left
            ends[winner].terminate()
            code, output = await winner
            assert code == ExitCode.DONE, output
        finally:
            for each in started:
                if each.returncode is None:
                    each.terminate()
            await asyncio.wait(ends, timeout=60)
        for code, output in (each.result() for each in ends if each is not winner):
            assert code == ExitCode.TRY_AGAIN, output
            assert "is in use by" in output
            assert "Traceback" not in output


async def _ended(process, ready):
    """Returns the exit code and the output. Sets `ready` when the daemon serves."""
    output = ""
    while line := (await process.stderr.readline()).decode():
        output += line
        if "daemon.ready" in line:
            ready.set()
    return await process.wait(), output


async def test_a_state_folder_open_to_others_is_reported_and_its_files_are_private(short_path):
    short_path.chmod(0o711)
    (short_path / "state").mkdir()
    (short_path / "state").chmod(0o755)
    group = grp.getgrgid(os.getgid()).gr_name
    async with Service(short_path, config=f"socket_group = '{group}'\n") as service:
        assert "0755" in await service.logged("state_dir.open_to_others")
        await service.messages_until("READY=1")
        modes = {path.name: path.stat().st_mode & 0o777 for path in (short_path / "state").glob("governor.*")}
        assert {"governor.db", "governor.db-wal", "governor.db-shm", "governor.reserve"} < set(modes)
        assert set(modes.values()) == {0o600}
        found = {path.name: path.stat().st_mode & 0o777 for path in short_path.glob("run/*.sock")}
        assert found == {"broker.sock": 0o660, "private.sock": 0o600, "workers.sock": 0o600}
        assert (short_path / "run").stat().st_mode & 0o777 == 0o710


async def test_a_group_that_cannot_be_given_access_is_refused_before_the_start(short_path):
    async with Service(short_path, config="socket_group = 'nobodys'\n") as service:
        _, output = await service.process.communicate()
        assert service.process.returncode == ExitCode.BAD_CONFIGURATION
    assert "there is no group 'nobodys'" in output.decode()
    assert list((short_path / "run").iterdir()) == []
