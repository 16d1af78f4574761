"""Where the output of a runner goes when it works for a driver again."""

from tests.support.output_world import started


def test_it_keeps_its_spools_for_the_same_driver_alone(tmp_path):
    process = started(
        tmp_path,
        f"""
from governor.tasks.protocol.wire import Serve
from governor.tasks.runner_process.output import RunnerOutput

def spools_after(folder, conductor):
    known = dict(run="r", run_folder="", path="", address=("", 0), secret=b"", runner=0, marker="")
    RunnerOutput().serve(Serve(**known, spools=str(folder), conductor=conductor), is_here=True)
    return len([path for path in folder.iterdir() if path.suffix == ".out"])

folder = Path({str(tmp_path)!r})
found = [spools_after(folder, "agent.walker"), spools_after(folder, "agent.walker"), spools_after(folder, "other")]
found.append(spools_after(folder / "other", "other"))
os.write(former, repr(found).encode())
""",
    )
    assert process.communicate()[1] == b"[1, 1, 2, 1]"
