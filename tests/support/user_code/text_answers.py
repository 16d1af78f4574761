"""Text environments whose answers have the forms that AIEvoBox takes."""

from __future__ import annotations

import json
import threading

from pydantic import BaseModel


class StepOutput(BaseModel):
    observation: dict = {}
    reward: float
    terminated: bool
    truncated: bool
    info: dict


FORMS = {
    "dict": lambda step: step,
    "tuple": lambda step: tuple(step.values()),
    "model_dump": lambda step: StepOutput(**step),
    "bytes": lambda step: json.dumps(step).encode(),
    "bytearray": lambda step: bytearray(json.dumps(step).encode()),
    "memoryview": lambda step: memoryview(json.dumps(step).encode()),
    "lean": lambda step: {"reward": None} if step["reward"] < 3 else {"reward": 6, "terminated": 1},
    "odd": lambda step: {**step, "info": ["any", "thing"]},
}


class Answers:
    """Three steps with the rewards 1, 2, 3. `prompts`: how many prompts are lists of messages."""

    def __init__(self, form="dict", *, prompts=9):
        self.form, self.prompts, self.taken = form, prompts, 0

    def get_task_prompt(self):
        if self.taken >= self.prompts:
            return None
        messages = [{"role": "user", "content": f"step {self.taken}"}]
        return json.dumps(messages).encode() if self.form == "bytes" else messages

    def step(self, action):
        self.taken += 1
        step = {"reward": float(self.taken), "terminated": self.taken == 3, "truncated": False, "info": {}}
        return FORMS[self.form](step)


class Locked(Answers):
    """It cannot be pickled. With `hangs` its second step waits until `go` is set."""

    def __init__(self, form="dict", *, hangs=False, prompts=9):
        super().__init__(form, prompts=prompts)
        self.lock, self.hangs, self.threads = threading.Lock(), hangs, set()
        self.held, self.go = threading.Event(), threading.Event()

    def step(self, action):
        self.threads.add(threading.current_thread())
        if self.hangs and self.taken == 1:
            self.held.set()
            self.go.wait()
        with self.lock:
            return super().step(action)
