"""User code: an agent that learns a little, and agents and tasks with faults."""

import ctypes
import os
import resource
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import gymnasium


class Walker:
    """Acts at random; its state is the number of its steps."""

    def __init__(self, *, observation_space, action_space, seed):
        action_space.seed(seed)
        self.space = action_space
        self.steps = 0

    def act(self, observation, *, explore):
        return int(self.space.sample())

    def learn(self, transition):
        self.steps += 1

    def state_dict(self):
        return {"steps": self.steps}

    def load_state_dict(self, state):
        self.steps = state["steps"]


class Stumbler(Walker):
    """Raises in some episodes."""

    def act(self, observation, *, explore):
        if self.space.np_random.random() < 0.05:
            raise ValueError(f"stumbled over {self.steps}")
        return super().act(observation, explore=explore)


class Killed(Walker):
    """Its process gets SIGKILL in the first step, after it has printed a line."""

    def act(self, observation, *, explore):
        os.write(1, b"before the kill\n")
        os.kill(os.getpid(), signal.SIGKILL)


class Dies:
    """Exits while its conductor waits for the first action."""

    def __init__(self, *, observation_space, action_space, seed):
        os._exit(9)


class Hoarder(Walker):
    """Allocates 300 MiB in its first step."""

    def learn(self, transition):
        if not self.steps:
            self.held = bytearray(b"x") * (300 * 1024**2)
        super().learn(transition)


class FiveSteps:
    """Each episode has five steps."""

    length = 5

    def __init__(self):
        self.observation_space = self.action_space = gymnasium.spaces.Discrete(2)

    def reset(self, *, seed=None):
        self.steps = 0
        return 0, {}

    def step(self, action):
        self.steps += 1
        return 0, 1.0, self.steps == self.length, False, {}


class Leaves(FiveSteps):
    """Its process ends in the second step of its third episode, after any action."""

    resets = 0

    def reset(self, *, seed=None):
        self.resets += 1
        return super().reset()

    def step(self, action):
        if (self.resets, self.steps) == (3, 1):
            os._exit(3)
        return super().step(action)


class LeavesAtOnce(Leaves):
    """Likewise, in the second step of each episode."""

    def step(self, action):
        self.resets = 3
        return super().step(action)


class LeavesInAct(Walker):
    """The process ends in its 12th action, the second one of an episode."""

    asked = 0

    def act(self, observation, *, explore):
        self.asked += 1
        if self.asked == 12:
            os._exit(3)
        return 0


class LeavesInActMany(LeavesInAct):
    """As `LeavesInAct`, for several episodes at once."""

    def act_many(self, observations, *, explore):
        return [self.act(observation, explore=explore) for observation in observations]


class LeavesInLearn(Walker):
    """The process ends in the second step of the third episode."""

    def learn(self, transition):
        super().learn(transition)
        if self.steps == 12:
            os._exit(3)


class LeavesInStateDict(Walker):
    """The process ends at the end of the first episode."""

    def state_dict(self):
        if self.steps == 5:
            os._exit(3)
        return super().state_dict()


class DiesOfAFullDisk(Walker):
    """Its first step, once, uses up the inodes of the state folder's disk."""

    def learn(self, transition):
        instance = Path(os.environ["GOVERNOR_TEST_INSTANCE"])
        if not (instance / "died").exists():
            (instance / "died").touch()
            folder = instance / "s" / "files"
            folder.mkdir()
            try:
                for number in range(100_000):
                    (folder / str(number)).touch()
            except OSError:
                os._exit(9)


class DetachedHoarder(Walker):
    """Starts a process that allocates 300 MiB; its parent is dead, its session is new, its environment is empty."""

    def learn(self, transition):
        if not self.steps:
            take = "import time; held = bytearray(b'x') * (300 * 1024**2); time.sleep(600)"
            start = f"import subprocess; subprocess.Popen([{sys.executable!r}, '-c', {take!r}], start_new_session=True)"
            subprocess.run([sys.executable, "-c", start], check=True, env={})
        super().learn(transition)


def hoard(mebibytes):
    held = bytearray(b"x") * (mebibytes * 1024**2)
    time.sleep(600)
    return len(held)


def litter(context, mebibytes):
    (Path(context.run_folder) / "litter").write_bytes(b"x" * (mebibytes * 1024**2))
    time.sleep(600)


def nap(seconds):
    time.sleep(seconds)


def once(context):
    """Writes a mark for each start, so that a repeated start is found."""
    with (Path(context.run_folder) / f"{context.task}.starts").open("a") as marks:
        marks.write("x")
    return {"number": 1.0}


def spin():
    while True:
        pass


def leave():
    sys.exit(3)


def vanish():
    os._exit(4)


def kill_myself():
    os.kill(os.getpid(), signal.SIGKILL)


def unserialisable():
    return threading.Lock()


def boom():
    raise ValueError("no such luck")


def large(context):
    """A value larger than a record: it is stored as a file of the run."""
    once(context)
    return {"numbers": [float(number) for number in range(20_000)]}


def heal(context, flag, *, how="fail"):
    """Succeeds once the file `flag` exists; before that its second run fails, once it may where it is the last, or hangs and
    reports that in the pipe beside, if there is one.
    """
    once(context)
    if context.run_id == 1 and not Path(flag).exists():
        if how == "hang":
            pipe = Path(f"{flag}.hangs")
            if pipe.exists():
                pipe.write_text("x")
            time.sleep(600)
        while how == "fail last" and not Path(f"{flag}.others_ended").exists():
            time.sleep(0.05)
        raise ValueError("not yet")
    return context.run_id


def collect(context, inputs):
    once(context)
    return {"sum": sum(inputs["large"]["numbers"]), "runs": inputs["flaky"]}


def where(context):
    """The runner and the model of this task."""
    return {"pid": os.getpid(), "model": context.model}


def scatter(pipe):
    """Starts processes that are hard to find again, writes their pids, and keeps running."""
    away = {"start_new_session": True, "stdout": subprocess.DEVNULL}
    bare = subprocess.Popen(["sleep", "600"], env={"PATH": os.defpath}, **away)
    child = subprocess.Popen(["sleep", "600"], **away)
    orphan = "import subprocess as s; print(s.Popen(['sleep', '600'], start_new_session=True, stdout=s.DEVNULL).pid)"
    started = subprocess.run([sys.executable, "-c", orphan], check=True, stdout=subprocess.PIPE, text=True)
    Path(pipe).write_text(f"{os.getpid()} {bare.pid} {child.pid} {started.stdout}")
    time.sleep(600)


def detach():
    """Starts two processes in other sessions, one of them with an empty environment. Writes their pids."""
    away = {"start_new_session": True, "stdout": subprocess.DEVNULL}
    found = [subprocess.Popen([shutil.which("sleep"), "600"], **away, **more) for more in ({}, {"env": {}})]
    Path(__file__).with_name("detached").write_text(" ".join(str(each.pid) for each in found) + "\n")


def detach_and_stay():
    detach()
    time.sleep(600)


def detach_without_limits():
    """As `detach`; both processes have also lost the mark that is stored in a resource limit."""
    resource.setrlimit(10, (resource.RLIM_INFINITY,) * 2)  # RLIMIT_LOCKS
    detach()


def detach_without_limits_and_stay():
    detach_without_limits()
    time.sleep(600)


class Detaching(FiveSteps):
    """An environment of one step."""

    length = 1
    detach = staticmethod(detach)

    def __init__(self):
        super().__init__()
        self.detach()


class DetachingWithoutLimits(Detaching):
    detach = staticmethod(detach_without_limits)


class DetachingWalker(Walker):
    """Detaches in its first step, so after the environment."""

    def act(self, observation, *, explore):
        if not hasattr(self, "detached"):
            self.detached = True
            detach()
            time.sleep(1)
        return super().act(observation, explore=explore)


def once_slowly(context, seconds):
    once(context)
    time.sleep(seconds)


class Holds(Walker):
    """Its first action holds the GIL in C code for longer than the liveness deadline of a conductor."""

    held = False

    def __init__(self, *, seconds=8, **more):
        super().__init__(**more)
        self.seconds = seconds

    def act(self, observation, *, explore):
        if not self.held:
            self.held = True
            ctypes.PyDLL(None).sleep(self.seconds)
        return super().act(observation, explore=explore)


class Sleeps(Walker):
    """Sleeps until a file `awake` exists beside."""

    def act(self, observation, *, explore):
        while not Path(__file__).with_name("awake").exists():
            time.sleep(0.05)
        return super().act(observation, explore=explore)


class Slow(Walker):
    """Takes 2 ms for each action, so that a run of 1,000 episodes takes some 15 s on any machine."""

    seconds = 0.002

    def act(self, observation, *, explore):
        time.sleep(self.seconds)
        return super().act(observation, explore=explore)


class Naps(Slow):
    """Takes so many seconds for each action."""

    def __init__(self, *, seconds, **more):
        super().__init__(**more)
        self.seconds = seconds


class Pauses(Walker):
    """Waits while a file `pause` exists beside."""

    def act(self, observation, *, explore):
        while Path(__file__).with_name("pause").exists():
            time.sleep(0.01)
        return super().act(observation, explore=explore)


class Hangs(Walker):
    """Its first process holds the GIL forever once a file `hold` exists beside."""

    def __init__(self, **given):
        super().__init__(**given)
        hold, held = (Path(__file__).with_name(name) for name in ("hold", "held"))

        def hang():
            while not hold.exists():
                time.sleep(0.05)
            if not held.exists():
                held.touch()
                ctypes.PyDLL(None).sleep(600)

        threading.Thread(target=hang, daemon=True).start()


class Counter:
    """A condition that answers once it has counted so many episodes, or after each so many of them."""

    def __init__(self, episodes, answer, *, again=False):
        self.episodes, self.answer, self.again, self.seen = episodes, answer, again, 0

    def episode_flow_control(self, episode):
        self.seen += 1
        due = self.seen % self.episodes == 0 if self.again else self.seen == self.episodes
        return self.answer if due else "CONTINUE"
