"""A run without conductors: what handles their reports, for tests."""

from types import SimpleNamespace

from governor.metrics import Metrics
from governor.run_file.load import parse
from governor.run_file.model import LimitsSection
from governor.runs.assignment import Assignment
from governor.runs.limits import RunLimits
from governor.runs.progress import Progress
from governor.runs.report_handler import ReportHandler
from governor.runs.run_log import RunLog
from governor.runs.services import Services
from governor.runs.variables import RunVariables
from transport.access import Secret

RUN = parse(
    {
        "name": "r",
        "conductors": {"environments": {"e": {"entry": "m:E"}}, "agents": {"a": {"entry": "m:A"}}},
        "phases": [{"name": "p", "simulate": {"environment": "e", "agents": ["a"], "episodes": 9}}],
    }
)

ASSIGNMENT = Assignment(uid="r1", run=RUN, folder="/")
SECRET = Secret.new()


class RecordingGovernor:
    """Records what it receives, and what is on record at that moment."""

    flow = "CONTINUE"

    def __init__(self, journal):
        self.journal = journal
        self.taken = []
        self.failures = []

    def journal_failed(self, error):
        self.failures.append(error)

    async def handle(self, event, *, detail=None):
        self.taken.append((event, detail, len([*self.journal.episodes("r1", 0)])))


class ReportingRun:
    """The part of an `ActiveRun` that handles its reports."""

    uid = "r1"
    secret = SECRET
    stamp = ("r1", 5.0)

    def __init__(self, journal):
        self.journal = journal
        self.missing = None
        self.context = SimpleNamespace(
            journal=journal, files=SimpleNamespace(missing=lambda run: self.missing), metrics=Metrics()
        )
        self.log = RunLog(ASSIGNMENT, self.context.metrics)
        self.governor = RecordingGovernor(journal)
        self.variables = RunVariables(ASSIGNMENT)
        self.progress = Progress(ASSIGNMENT)
        self.limits = RunLimits(LimitsSection())
        self.services = Services(ASSIGNMENT)
        self.handler = ReportHandler(self)

    async def is_out_of_room(self):
        return self.journal.is_out_of_room
