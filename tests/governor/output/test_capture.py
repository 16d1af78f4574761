"""What a process prints is in its spools."""

import time

import pytest

from tests.support.output_world import lines_of, readers_of, started, texts


def test_prints_of_python_c_and_subprocesses(tmp_path):
    lines = lines_of(
        tmp_path,
        """
import ctypes
print("printed", 1)
os.write(1, b"written\\n")
os.system("echo started; echo on stderr >&2")
ctypes.CDLL(None).printf(b"from C\\n")
sys.stderr.write("told\\n")
print("several\\nlines")
""",
    )
    assert sorted(texts(lines)) == sorted(["printed 1", "written", "started", "from C", "several", "lines"])
    assert sorted(texts(lines, "stderr")) == ["on stderr", "told"]


def test_our_own_log_keeps_the_former_standard_error(tmp_path):
    process = started(tmp_path, "os.write(former, b'ours'); print('theirs')")
    assert process.communicate() == (b"", b"ours")


def test_loggers_and_warnings_have_level_and_name(tmp_path):
    lines = lines_of(
        tmp_path,
        """
mine = logging.getLogger("mine")
mine.setLevel(logging.INFO)
mine.debug("below its level"); mine.info("without a handler"); logging.getLogger("x").info("below the root's")
capture.logger().debug("of the context")
warnings.warn("careful")
for _ in range(3): warnings.warn("once")
logging.basicConfig(level=logging.DEBUG, format="FORMAT %(message)s")
mine.debug("below again"); mine.error("formatted"); capture.logger().info("not twice")
""",
    )
    assert [(line.level, line.logger, line.text) for line in lines if line.level != "warning"] == [
        ("info", "mine", "without a handler"),
        ("debug", "context", "of the context"),
        ("error", "mine", "FORMAT formatted"),
        ("info", "context", "not twice"),
    ]
    warned = [line.text for line in lines if line.level == "warning" and line.logger == "py.warnings"]
    assert [text.rpartition(": ")[2] for text in warned if "UserWarning" in text] == ["careful", "once"]


@pytest.mark.parametrize(
    ("code", "left"),
    [
        ("os.write(1, b'whole\\nraw half')", "raw half"),
        ("print('whole'); print('half a line', end='', flush=True)", "half a line"),
        ("print('whole'); os.system('printf started')", "started"),
    ],
)
def test_what_was_written_before_kill_9_is_there_also_within_a_line(tmp_path, code, left):
    lines = lines_of(tmp_path, f"{code}\nos.kill(os.getpid(), 9)")
    assert [(line.text, line.partial) for line in lines] == [("whole", False), (left, True)]


def test_the_stack_of_a_crash_is_there(tmp_path):
    lines = lines_of(tmp_path, "import ctypes; ctypes.string_at(0)")
    assert any("Segmentation fault" in text for text in texts(lines, "stderr"))
    assert any("string_at" in text for text in texts(lines, "stderr"))


def test_descriptors_that_user_code_sends_elsewhere_or_closes(tmp_path):
    elsewhere = tmp_path / "elsewhere"
    lines = lines_of(
        tmp_path / "spools",
        f"""
keep, file = os.dup(1), os.open({str(elsewhere)!r}, os.O_WRONLY | os.O_CREAT)
os.dup2(file, 1)
print("there")
os.system("echo there, too")
os.dup2(keep, 1)
print("here")
os.close(1)
print("after it was closed")
file = open({str(elsewhere) + "2"!r}, "w")
print("after a file has its number", file.fileno())
file.write("untouched")
file.close()
sys.stdout.close()
print("after close")
sys.stdout = open(os.devnull, "w")
print("nowhere")
""",
    )
    assert texts(lines) == ["here", "after it was closed", "after a file has its number 1", "after close"]
    assert elsewhere.read_text() == "there\nthere, too\n"
    assert (tmp_path / "elsewhere2").read_text() == "untouched"


def test_forks_and_children_of_multiprocessing(tmp_path):
    lines = lines_of(
        tmp_path,
        """
print("held", end="")
if os.fork() == 0:
    print("forked", os.getpid())
    os._exit(0)
os.wait()
print(" and over")
os.write(former, b"")
""",
    )
    by_text = {line.text.split()[0]: line for line in lines}
    assert by_text["forked"].text == f"forked {by_text['forked'].pid}"
    assert by_text["held"].text == "held and over"
    assert by_text["held"].pid != by_text["forked"].pid


def test_much_text_at_once_is_not_a_record_for_each_line(tmp_path):
    process = started(tmp_path, "episode.begin(episode=5); print('x\\n' * 100_000, end=''); print('end')")
    process.communicate()
    [_, out] = readers_of(tmp_path)
    assert out.path.stat().st_size < 250_000
    lines = out.finish(time.time())
    assert len(lines) == 100_001
    assert {line.episode for line in lines} == {5}
    assert lines[-1].text == "end"


def test_a_second_capture_takes_all_streams_to_new_spools_and_release_ends_it(tmp_path):
    process = started(
        tmp_path / "one",
        f"""
handler = logging.StreamHandler(sys.stderr)
logging.getLogger("mine").addHandler(handler)
print("first")
capture.capture(Path({str(tmp_path / "two")!r}), conductor="b")
print("second")
logging.getLogger("mine").error("logged")
os.system("echo sub")
capture.release(former)
print("free")
""",
    )
    assert process.communicate() == (b"", b"free\n")

    def said(folder):
        return sorted(line.text for reader in readers_of(folder) for line in reader.finish(time.time()))

    assert (said(tmp_path / "one"), said(tmp_path / "two")) == (["first"], ["logged", "second", "sub"])


@pytest.mark.parametrize(
    ("deed", "there"),
    [
        ("pass", True),
        ("os.close(1)", False),
        ("os.dup2(os.open(os.devnull, os.O_WRONLY), 2)", False),
        ("[path.unlink() for path in folder.iterdir()]", False),
        ("capture.release(former)", False),
    ],
)
def test_a_process_whose_output_goes_there_needs_no_other_spools(tmp_path, deed, there):
    process = started(
        tmp_path,
        f"""
folder = Path({str(tmp_path)!r})
{deed}
found = [capture.goes_to(folder, conductor=name) for name in ("agent.walker", "b")]
found.append(capture.goes_to(folder / "x", conductor="agent.walker"))
os.write(former, repr(found).encode())
""",
    )
    assert process.communicate()[1] == repr([there, False, False]).encode()


def test_a_full_disk_loses_lines_which_are_counted_and_raises_nothing(tmp_path):
    process = started(
        tmp_path,
        """
import resource, signal
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
print("fits")
soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
resource.setrlimit(resource.RLIMIT_FSIZE, (10, hard))
for _ in range(3): print("does not")
resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
sys.stdout.write("fits again\\nand again\\n")
""",
    )
    assert process.communicate() == (b"", b"")
    [_, out] = readers_of(tmp_path)
    lines = out.finish(time.time())
    assert [line.text for line in lines if not line.dropped] == ["fits", "fits again", "and again"]
    assert [line.dropped for line in lines if line.dropped] == [(3, 0)]


def test_nothing_of_a_long_line_is_lost_whose_beginning_was_flushed(tmp_path):
    lines = lines_of(tmp_path, "print('a', end='', flush=True); sys.stdout.write('b' * 100_000 + '\\nc\\n')")
    *parts, last = lines
    assert "".join(line.text for line in parts) == "a" + "b" * 100_000
    assert [line.partial for line in parts[-2:]] == [True, False]
    assert last.text == "c"


@pytest.mark.parametrize("flushed", [False, True])
def test_a_message_within_a_progress_bar_is_a_line_of_its_own(tmp_path, flushed):
    lines = lines_of(
        tmp_path,
        f"""
def draw(percent, end=""): print(f"\\r{{percent}} %", end=end, flush={flushed}, file=sys.stderr)
draw(1)
logging.error("diverged")
draw(2)
draw(3, end="\\n")
""",
    )
    assert [(line.text, line.level, line.logger) for line in lines] == [
        ("1 %", "", ""),
        ("ERROR:root:diverged", "error", "root"),
        ("3 %", "", ""),
    ]


def test_a_thread_waits_while_another_takes_its_half_of_a_line(tmp_path):
    lines = lines_of(
        tmp_path,
        """
import threading
taken, printed, put = threading.Event(), threading.Event(), capture.Output._put
def slow(self, *args, more):
    if threading.current_thread() is not threading.main_thread():
        taken.set()
        printed.wait(0.5)  # as long as it may take until the main thread has printed, if nothing holds it back
    put(self, *args, more=more)
capture.Output._put = slow
print("one", end="")
flusher = threading.Thread(target=capture.flush)
flusher.start()
taken.wait()
print(" line")
printed.set()
flusher.join()
""",
    )
    assert [(line.text, line.partial) for line in lines] == [("one line", False)]


def test_the_event_loop_does_not_wait_for_a_thread_that_prints_into_a_full_pipe(tmp_path):
    lines = lines_of(
        tmp_path,
        """
import threading
read, write = os.pipe()
keep = os.dup(1)
os.dup2(write, 1)
full = threading.Thread(target=print, args=("x" * 1_000_000,), daemon=True)
full.start()
os.read(read, 1)
capture.flush_soon()
os.dup2(keep, 1)
os.write(1, b"free\\n")
os._exit(0)
""",
    )
    assert texts(lines) == ["free"]


def test_a_file_that_a_fork_opens_under_the_number_of_a_spool_gets_no_records(tmp_path):
    lines = lines_of(
        tmp_path / "spools",
        f"""
if os.fork() == 0:
    os.closerange(3, 100)
    files = [os.open({str(tmp_path / "data")!r}, os.O_WRONLY | os.O_CREAT) for _ in range(10)]
    print("printed")
    os.close(1)
    print("nowhere")
    os._exit(0)
os.wait()
""",
    )
    assert texts(lines) == ["printed"]
    assert (tmp_path / "data").read_bytes() == b""


GAME = """
class Game:
    def get_task_prompt(self):
        print("prompted")
        return [{"role": "user", "content": "go"}]
    def step(self, action):
        import os
        print("half", end="")
        os.system("echo started")
        return 1.0, True, False, {}
"""


def test_a_text_environment_in_a_process_of_its_own_has_spools_of_its_own(tmp_path):
    (tmp_path / "game.py").write_text(GAME)
    lines = lines_of(
        tmp_path / "spools",
        f"""
import asyncio
sys.path.insert(0, {str(tmp_path)!r})
from governor.episodes.text.environments.process import TextProcess
async def play():
    game = await TextProcess.started("game:Game", timeout=60)
    await game.begin(phase='talk', episode=5)
    await game.get_task_prompt(timeout=60)
    await game.step("north", timeout=60)
    await game.aclose()
asyncio.run(play())
print("player")
""",
    )
    by_text = {line.text: line for line in lines}
    assert set(by_text) == {"prompted", "half", "started", "player"}
    assert {(line.phase, line.episode) for text, line in by_text.items() if text != "player"} == {("talk", 5)}
    assert by_text["prompted"].pid != by_text["player"].pid
    assert {line.conductor for line in lines} == {"agent.walker"}
