"""Documents of reports, and what a page has in it."""

import base64
import json
import math
import zlib
from html.parser import HTMLParser

from governor.messages import PhaseResult, RunEvent
from governor.report.document import (
    Column,
    ConductorUsage,
    CurveData,
    Document,
    Failure,
    LogLine,
    RunDocument,
    Session,
    Summary,
    Table,
    Turn,
    Usage,
    Windows,
)
from governor.report.timeline import timeline_of

HOSTILE = "</script><script>alert(1)</script><img src=x onerror=alert(2)>&lt;\x1b[31m\u202e\u2028\x00'\"]]>"
"""Texts of users that would be more than text if a page took them as they are."""
ROWS = 10_000
OUTCOMES = ["succeeded", "failed"]


def run_document(uid="u1", *, outcome="finished", reason="", seed=1, metrics=None, text="", **sections):
    """A run with few fields; `text` is in each place where users have texts."""
    phase = PhaseResult(
        name=f"train{text}",
        mode="train",
        end="max_episodes",
        episodes={"terminated": 2},
        metrics={f"return_mean{text}": 0.5} if metrics is None else metrics,
    )
    summary = Summary(
        uid=uid,
        name=f"lake{text}",
        outcome=outcome,
        reason=reason + text,
        submitted_at=1.0,
        folder=f"/runs/{uid}{text}",
        phases=[phase],
    )
    return RunDocument(summary=summary, run_file=f"name: lake\nseed: {seed}\n", **sections)


def hostile_run():
    """Hostile texts in each section."""
    return run_document(
        outcome="failed",
        text=HOSTILE,
        failures=[
            Failure(
                phase=HOSTILE,
                kind="episode",
                number=2,
                outcome="failed",
                reason=HOSTILE,
                first=HOSTILE,
                traceback=HOSTILE,
                log=[LogLine(at=1.0, stream="out", text=HOSTILE, where=HOSTILE)],
            )
        ],
        tasks=Table(
            columns=[
                Column(name=HOSTILE, kind="text", values=[HOSTILE]),
                Column(name="outcome", kind="outcome", values=[0], dictionary=[HOSTILE]),
            ],
            total=1,
            shown=1,
            note=HOSTILE,
        ),
        sessions=[
            Session(phase=HOSTILE, episode=0, why=HOSTILE, messages=[Turn(role=HOSTILE, text=HOSTILE)])
        ],
        missing=[HOSTILE],
        environment={HOSTILE: HOSTILE, "packages": {HOSTILE: HOSTILE}},
    )


def document(*runs, **more):
    return Document(made_at=1.0, governor="0", runs=[*runs], **more)


class Page(HTMLParser):
    """The elements of a page as (tag, attributes), and the texts of its scripts."""

    def __init__(self, html):
        super().__init__()
        self.elements = []
        self.scripts = []
        self.texts = []
        self.feed(html)
        self.close()

    def handle_starttag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))
        if tag == "script":
            self.scripts.append("")

    def handle_data(self, data):
        if self.elements and self.elements[-1][0] == "script":
            self.scripts[-1] += data
        else:
            self.texts.append(data)

    @property
    def data(self):
        """The document, as its scripts read it."""
        [kind] = [
            each["type"] for tag, each in self.elements if tag == "script" and each.get("id") == "document"
        ]
        if kind == "application/json":
            return json.loads(self.scripts[0])
        return json.loads(zlib.decompress(base64.b64decode(self.scripts[0]), -15))


def curve(metric="return", shift=0.0):
    keys = [*range(0, 640, 8)]
    mean = [math.sin(key / 60) + shift for key in keys]
    spread = {name: [value + by for value in mean] for name, by in {"p10": -1.0, "p25": -0.5, "p50": 0.0, "p75": 0.5, "p90": 1.0}.items()}  # fmt: skip
    windows = Windows(
        first=keys,
        last=[key + 7 for key in keys],
        step_first=[key * 10 for key in keys],
        step_last=[key * 10 + 79 for key in keys],
        at_first=[key / 100 for key in keys],
        at_last=[key / 100 + 0.07 for key in keys],
        count=[8 for _ in keys],
        mean=mean,
        low=mean,
        high=mean,
        **spread,
    )
    return CurveData(phase="train", mode="train", metric=metric, count=640, windows=windows)


def many():
    """A run of 10,000 episodes and 10,000 tasks."""
    events = []
    for index in range(ROWS):
        place = {"phase": 0, "task": "fit", "run": index}
        started = {**place, "attempt": 1, "pid": index % 4 + 1, "node": "n"}
        events.append(RunEvent(uid="u1", seq=2 * index + 1, at=index / 10, kind="task.started", data=started))
        record = {"task": "fit", "run": index, "outcome": OUTCOMES[index % 10 == 0], "seconds": 0.05}
        ended = {"phase": 0, "record": record}
        events.append(
            RunEvent(uid="u1", seq=2 * index + 2, at=index / 10 + 0.05, kind="task.ended", data=ended)
        )
    usage = Usage(
        at=[*range(50)], conductors={"agent.a": ConductorUsage(cpu=[0.5] * 50, memory=[1 << 27] * 50)}
    )
    return run_document(
        curves=[curve(), curve("steps")],
        timeline=timeline_of(events),
        usage=usage,
        episodes=rows("episode"),
        tasks=rows("task"),
    )


def rows(name):
    return Table(
        columns=[
            Column(name=name, kind="number", unit="id", values=[*range(ROWS)]),
            Column(name="outcome", kind="outcome", values=[int(index % 10 == 0) for index in range(ROWS)], dictionary=OUTCOMES),
            Column(name="return", kind="number", values=[index * 7919 % 10_007 / 7 for index in range(ROWS)]),
        ],
        total=ROWS,
        shown=ROWS,
    )  # fmt: skip
