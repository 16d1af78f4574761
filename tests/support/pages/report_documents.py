"""Documents of reports, and what a page has in it."""

import base64
import json
import zlib
from html.parser import HTMLParser

from governor.messages import PhaseResult
from governor.report.document import (
    Column,
    Document,
    Failure,
    LogLine,
    RunDocument,
    Session,
    Summary,
    Table,
    Turn,
)

HOSTILE = "</script><script>alert(1)</script><img src=x onerror=alert(2)>&lt;\x1b[31m\u202e\u2028\x00'\"]]>"
"""Texts of users that would be more than text if a page took them as they are."""


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
