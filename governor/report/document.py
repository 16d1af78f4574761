"""The document of a report: all that its page shows, as data. Python makes it, JavaScript draws it, the live page gets it section by
section.

Rules:
1. Numbers are those of `results --json`: what a result says is not computed again.
2. All texts are data of users: none is HTML.
3. Its size is bounded, whatever the run's: each list says how much was left out.
4. Many rows travel as columns of equal length. NaN and the infinities become null.
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from governor.messages import PhaseResult  # noqa: TC001  # msgspec reads the annotation

VERSION = 1


class Summary(msgspec.Struct, kw_only=True):
    """The run's result, as `RunResult` has it, without its tasks. `state`: as `status` shows it; `waits_for`: what an unended run waits for."""

    uid: str
    name: str
    outcome: str
    state: str = ""
    reason: str = ""
    waits_for: str = ""
    submitted_at: float
    started_at: float | None = None
    ended_at: float | None = None
    seconds: float | None = None
    parent: str | None = None
    submitted_by: dict[str, Any] = {}
    code_changed: tuple[str, ...] = ()
    folder: str = ""
    phases: list[PhaseResult] = []


class LogLine(msgspec.Struct, kw_only=True):
    """`stream`: ``out``, ``err`` or ``log``; `level` of a record, `where` it was written: conductor, episode or task."""

    at: float
    stream: str
    level: str = ""
    text: str
    where: str = ""


class Failure(msgspec.Struct, kw_only=True):
    """A cause, as `FailureGroup` has it; traceback and the last lines of what failed first."""

    phase: str
    kind: str
    number: int
    outcome: str
    reason: str
    first: str
    others: bool = False
    failure_kind: str | None = None
    traceback: str = ""
    log: list[LogLine] = []


class Windows(msgspec.Struct, kw_only=True):
    """Of a curve, as columns. `first`, `last`: keys (episodes, or steps); `step_*` the steps, `at_*` the seconds of the phase in work."""

    first: list[int] = []
    last: list[int] = []
    step_first: list[int] = []
    step_last: list[int] = []
    at_first: list[float] = []
    at_last: list[float] = []
    count: list[int] = []
    mean: list[float] = []
    low: list[float] = []
    high: list[float] = []
    p10: list[float] = []
    p25: list[float] = []
    p50: list[float] = []
    p75: list[float] = []
    p90: list[float] = []


class CurveData(msgspec.Struct, kw_only=True):
    """`by_step`: its keys are steps. `width`: keys of a window; `count` values are in windows, `unusable` ones in none."""

    phase: str
    mode: str
    metric: str
    by_step: bool = False
    evaluation: bool = False
    width: int = 1
    count: int = 0
    unusable: int = 0
    windows: Windows


class Lane(msgspec.Struct, kw_only=True):
    name: str
    group: Literal["run", "phases", "conductors", "runners"]


class Spans(msgspec.Struct, kw_only=True):
    """`lane`: index of its lane; `start`, `end`: seconds after the timeline's begin, `end` is None while it lasts. `kind`: ``run``, ``phase``,
    ``part``, ``process``, ``attempt`` ...
    """

    lane: list[int] = []
    start: list[float] = []
    end: list[float | None] = []
    kind: list[str] = []
    label: list[str] = []
    outcome: list[str] = []
    detail: list[str] = []


class Marks(msgspec.Struct, kw_only=True):
    """Moments. `kind`: ``restart``, ``kill``, ``silent``, ``stalled``, ``failure``, ``limit``, ``interrupted`` ..."""

    lane: list[int] = []
    at: list[float] = []
    kind: list[str] = []
    label: list[str] = []


class Timeline(msgspec.Struct, kw_only=True):
    """`begin`, `end`: Unix times. `left_out`: spans that were too many."""

    begin: float
    end: float
    lanes: list[Lane] = []
    spans: Spans = msgspec.field(default_factory=Spans)
    marks: Marks = msgspec.field(default_factory=Marks)
    left_out: int = 0


class Column(msgspec.Struct, kw_only=True, omit_defaults=True):
    """`values` by row; where few texts repeat: `dictionary`, and in `values` the index in it."""

    name: str
    kind: Literal["number", "text", "outcome"]
    unit: str = ""
    values: list[Any] = []
    dictionary: list[str] | None = None


class Table(msgspec.Struct, kw_only=True):
    """`total` rows there are, `shown` are here; `note`: which ones, and how to get all."""

    columns: list[Column] = []
    total: int = 0
    shown: int = 0
    note: str = ""


class EpisodeSteps(msgspec.Struct, kw_only=True):
    """The steps of one episode. `why` it was chosen: ``best``, ``worst``, ``median``, ``last``, ``failed``, ``asked``."""

    phase: str
    episode: int
    why: str
    outcome: str = ""
    value: float = 0.0
    columns: list[Column] = []
    left_out: int = 0


class Turn(msgspec.Struct, kw_only=True):
    """A message of a text session: `role` as ``system``, ``user``, ``assistant``, ``environment``."""

    role: str
    text: str
    step: int | None = None
    reward: float | None = None


class Session(msgspec.Struct, kw_only=True):
    """As `EpisodeSteps`, of an episode whose observations and actions are texts."""

    phase: str
    episode: int
    why: str
    outcome: str = ""
    value: float = 0.0
    messages: list[Turn] = []
    left_out: int = 0


class ConductorUsage(msgspec.Struct, kw_only=True):
    """`cpu`: cores in use, `memory`: bytes, at each time of `Usage.at`; None where it was not measured."""

    cpu: list[float | None] = []
    memory: list[int | None] = []


class Usage(msgspec.Struct, kw_only=True):
    """`at`: seconds after the run's start."""

    at: list[float] = []
    conductors: dict[str, ConductorUsage] = {}


class RunDocument(msgspec.Struct, kw_only=True):
    """One run; each field is a section of the page. `run_file`: as YAML. `environment`: versions, packages, host, digest of the code. `missing`: what could
    not be read, and why.
    """

    summary: Summary
    failures: list[Failure] = []
    curves: list[CurveData] = []
    timeline: Timeline | None = None
    usage: Usage | None = None
    episodes: Table = msgspec.field(default_factory=Table)
    tasks: Table = msgspec.field(default_factory=Table)
    steps: list[EpisodeSteps] = []
    sessions: list[Session] = []
    run_file: str = ""
    environment: dict[str, Any] | None = None
    missing: list[str] = []


class MetricComparison(msgspec.Struct, kw_only=True):
    """A metric of a phase over runs that differ in their seed alone. `values`: one per run of `Comparison.runs`, None where it has none. `mean` with the
    interval `low` .. `high` that holds the true mean with 95 % confidence (Student's t), over `n` runs; None below two.
    `group`: the runs that differ in nothing but their seeds.
    """

    phase: str
    metric: str
    group: str = ""
    values: list[float | None]
    mean: float | None = None
    low: float | None = None
    high: float | None = None
    n: int = 0


class Difference(msgspec.Struct, kw_only=True):
    """A key in which the run files differ; `values`: one per run, as text, empty where it is not set."""

    path: str
    values: list[str]


class ComparedRun(msgspec.Struct, kw_only=True):
    uid: str
    name: str
    label: str


class Comparison(msgspec.Struct, kw_only=True):
    runs: list[ComparedRun] = []
    metrics: list[MetricComparison] = []
    differences: list[Difference] = []


class Document(msgspec.Struct, kw_only=True):
    """`governor`: the version that made it, at `made_at` (Unix time). `live`: its sections change."""

    version: int = VERSION
    made_at: float
    governor: str
    live: bool = False
    runs: list[RunDocument] = []
    comparison: Comparison | None = None
