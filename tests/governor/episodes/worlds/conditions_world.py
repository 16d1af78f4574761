"""Conditions of a user's own."""

import enum
import os
import time
from collections import deque
from pathlib import Path


class SimulationFlowControl(enum.Enum):
    CONTINUE = 1
    RESET = 2
    RESTART = 3
    STOP_SIMULATION = 4
    STOP_PHASE = 5
    SHUTDOWN = 6


class Every:
    """Answers after each so many episodes; writes down what it is asked."""

    def __init__(self, episodes, answer, log=None):
        self.episodes, self.answer, self.asked, self.log = episodes, answer, 0, log

    def episode_flow_control(self, episode):
        self.asked += 1
        if self.log is not None:
            with Path(self.log).open("a") as log:
                log.write(f"{episode.index} {episode.evaluation} {episode.value} {self.asked}\n")
        return self.answer if self.asked % self.episodes == 0 else None


class MaxEpisodes:
    """With the arguments and the answer that palaestrAI's have."""

    def __init__(self, episodes):
        self.episodes = episodes

    def phase_flow_control(self, metrics):
        if metrics["episodes_ended"] >= self.episodes:
            return SimulationFlowControl.STOP_PHASE, {"episodes": self.episodes}
        return SimulationFlowControl.CONTINUE, None


class AgentObjective:
    """What `brain_avgN` and `phase_avgN` are: the episodes fill a window, the phase looks at its mean."""

    def __init__(self, window, at_least):
        self.returns, self.at_least = deque(maxlen=window), at_least

    def episode_flow_control(self, episode):
        self.returns.append(episode.value)
        return "RESET"

    def phase_flow_control(self, metrics):
        full = len(self.returns) == self.returns.maxlen
        return "STOP_PHASE" if full and sum(self.returns) / len(self.returns) >= self.at_least else "CONTINUE"


class EvaluationObjective:
    """A success of palaestrAI's: so many evaluations in a row are good enough, and there were so many at all."""

    def __init__(self, threshold, consecutive, min_evaluations):
        self.threshold, self.consecutive, self.min_evaluations = threshold, consecutive, min_evaluations
        self.number = self.streak = 0

    def phase_flow_control(self, metrics):
        if (number := metrics.get("evaluations", 0)) > self.number:
            self.number = number
            self.streak = self.streak + 1 if metrics["evaluation_return_mean"] >= self.threshold else 0
        done = number >= self.min_evaluations and self.streak >= self.consecutive
        return (SimulationFlowControl.STOP_PHASE if done else SimulationFlowControl.CONTINUE), None


class Bad:
    """Goes wrong in the fourth episode."""

    def __init__(self, how):
        self.how = how
        if how == "built":
            raise RuntimeError("not today")

    def episode_flow_control(self, episode):
        if episode.index != 3:
            return None
        match self.how:
            case "raises":
                raise KeyError("gain")
            case "exits":
                raise SystemExit(3)
            case "leaves":
                os._exit(3)
            case "hangs":
                time.sleep(1000)
        return {"answer": "STOPP", "bool": True}.get(self.how)


class Mute:
    """Has no method of a condition."""


class Metrics:
    """Writes down what the phase is like."""

    def __init__(self, log, context):
        self.log, self.context = Path(log), context

    def phase_flow_control(self, metrics):
        with self.log.open("a") as log:
            log.write(f"{self.context.run_id} {metrics['episodes_ended']} {metrics.get('evaluations', 0)}\n")
