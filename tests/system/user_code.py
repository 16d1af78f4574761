"""What users bring: an agent that learns a little, and agents and tasks that misbehave."""

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
    """Walks at random; what it has learned is how many steps it took."""

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


class Dies:
    """While its conductor asks it for its first action."""

    def __init__(self, *, observation_space, action_space, seed):
        os._exit(9)


class Hoarder(Walker):
    """Takes 300 MiB with its first step."""

    def learn(self, transition):
        if not self.steps:
            self.held = bytearray(b"x") * (300 * 1024**2)
        super().learn(transition)


class Leaves:
    """Whatever is done; in its second step of its third episode the process ends."""

    def __init__(self):
        self.observation_space = self.action_space = gymnasium.spaces.Discrete(2)
        self.resets = self.steps = 0

    def reset(self, *, seed=None):
        self.resets += 1
        self.steps = 0
        return 0, {}

    def step(self, action):
        self.steps += 1
        if (self.resets, self.steps) == (3, 2):
            os._exit(3)
        return 0, 1.0, self.steps == 5, False, {}


class FiveSteps:
    """Each episode has five."""

    def __init__(self):
        self.observation_space = self.action_space = gymnasium.spaces.Discrete(2)

    def reset(self, *, seed=None):
        self.steps = 0
        return 0, {}

    def step(self, action):
        self.steps += 1
        return 0, 1.0, self.steps == 5, False, {}


class LeavesInAct(Walker):
    """The process ends with its 12th action: the second one of an episode."""

    asked = 0

    def act(self, observation, *, explore):
        self.asked += 1
        if self.asked == 12:
            os._exit(3)
        return 0


class LeavesInActMany(LeavesInAct):
    """Likewise; for several episodes at once."""

    def act_many(self, observations, *, explore):
        return [self.act(observation, explore=explore) for observation in observations]


class LeavesInLearn(Walker):
    """In the second step of the third episode."""

    def learn(self, transition):
        super().learn(transition)
        if self.steps == 12:
            os._exit(3)


class LeavesInStateDict(Walker):
    """At the end of the first episode."""

    def state_dict(self):
        if self.steps == 5:
            os._exit(3)
        return super().state_dict()


class DiesOfAFullDisk(Walker):
    """With its first step, once: it takes all files that the disk of the state folder has left."""

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
    """Has 300 MiB taken by a process whose parent is dead, in a session of its own and without an environment."""

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
    """Leaves a mark for each start, so that work done twice is seen."""
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
    """More than fits a record: the value is a file of the run."""
    once(context)
    return {"numbers": [float(number) for number in range(20_000)]}


def heal(context, flag, *, how="fail"):
    """Good once the file `flag` is there; before that its second run fails, or hangs: it says so in the pipe beside, if
    there is one.
    """
    once(context)
    if context.run_id == 1 and not Path(flag).exists():
        if how == "hang":
            pipe = Path(f"{flag}.hangs")
            if pipe.exists():
                pipe.write_text("x")
            time.sleep(600)
        raise ValueError("not yet")
    return context.run_id


def collect(context, inputs):
    once(context)
    return {"sum": sum(inputs["large"]["numbers"]), "runs": inputs["flaky"]}


def where(context):
    """On which runner, and with which model."""
    return {"pid": os.getpid(), "model": context.model}


def scatter(pipe):
    """Starts what is hard to find again, tells its pids, and stays."""
    away = {"start_new_session": True, "stdout": subprocess.DEVNULL}
    bare = subprocess.Popen(["sleep", "600"], env={"PATH": os.defpath}, **away)
    child = subprocess.Popen(["sleep", "600"], **away)
    orphan = "import subprocess as s; print(s.Popen(['sleep', '600'], start_new_session=True, stdout=s.DEVNULL).pid)"
    told = subprocess.run([sys.executable, "-c", orphan], check=True, stdout=subprocess.PIPE, text=True)
    Path(pipe).write_text(f"{os.getpid()} {bare.pid} {child.pid} {told.stdout}")
    time.sleep(600)


def detach():
    """Starts two processes in sessions of their own, one of them without an environment; tells their pids."""
    away = {"start_new_session": True, "stdout": subprocess.DEVNULL}
    found = [subprocess.Popen([shutil.which("sleep"), "600"], **away, **more) for more in ({}, {"env": {}})]
    Path(__file__).with_name("detached").write_text(" ".join(str(each.pid) for each in found) + "\n")


def detach_and_stay():
    detach()
    time.sleep(600)


def detach_without_limits():
    """As `detach`; both processes have lost what a limit has told about them."""
    resource.setrlimit(10, (resource.RLIM_INFINITY,) * 2)  # RLIMIT_LOCKS
    detach()


def detach_without_limits_and_stay():
    detach_without_limits()
    time.sleep(600)


class Detaching:
    """An environment of one step."""

    detach = staticmethod(detach)

    def __init__(self):
        self.observation_space = gymnasium.spaces.Discrete(2)
        self.action_space = gymnasium.spaces.Discrete(2)
        self.detach()

    def reset(self, *, seed=None, options=None):
        return 0, {}

    def step(self, action):
        return 0, 1.0, True, False, {}


class DetachingWithoutLimits(Detaching):
    detach = staticmethod(detach_without_limits)


class DetachingWalker(Walker):
    """Detaches with its first step, so behind the environment."""

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
    """Its first action takes longer than a conductor may be silent, in C code that keeps Python's lock."""

    held = False

    def act(self, observation, *, explore):
        if not self.held:
            self.held = True
            ctypes.PyDLL(None).sleep(8)
        return super().act(observation, explore=explore)


class Sleeps(Walker):
    """Until there is a file `awake` beside."""

    def act(self, observation, *, explore):
        while not Path(__file__).with_name("awake").exists():
            time.sleep(0.05)
        return super().act(observation, explore=explore)


class Pauses(Walker):
    """While there is a file `pause` beside."""

    def act(self, observation, *, explore):
        while Path(__file__).with_name("pause").exists():
            time.sleep(0.01)
        return super().act(observation, explore=explore)


class Hangs(Walker):
    """Its first process keeps Python's lock for good once there is a file `hold` beside."""

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
