"""The base of conductors: the report of a failure, which must reach the governor whatever its cause."""

from __future__ import annotations

import pytest
from structlog.testing import capture_logs

from governor.conductors import conductor
from governor.messages import FailedReport, Report, decode_report, encode
from governor.messages.link import RecordingLink


@pytest.mark.parametrize(
    "message", ["\udcff.csv can't be read", "x" * 10**7, "\udcff" * 10**6], ids=["name", "long", "both"]
)
async def test_the_farewell_fits_and_travels_whatever_the_error_says(message):
    link = RecordingLink()
    with capture_logs() as logged:
        await conductor._report_failure(link, ValueError(message))
    assert [line["event"] for line in logged] == ["conductor.failed"]
    [goodbye] = link.events
    packed = encode(Report(conductor="c", incarnation=1, seq=1, events=(goodbye,)))
    assert len(packed) < 200_000
    assert decode_report(packed).events == (goodbye,)
    assert isinstance(goodbye, FailedReport)
    assert goodbye.reason.startswith("ValueError: " + message[:3].replace("\udcff", "\\udcff"))
    assert goodbye.traceback.rstrip()[-3:] == message[-3:].encode(errors="backslashreplace").decode()[-3:]
