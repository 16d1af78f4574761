from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from transport import envelope as envelopes
from transport.envelope import ReplyEnvelope, ReplyStatus, RequestEnvelope
from transport.errors import MalformedFrames

ids = st.integers(0, 2**64 - 1)
sessions = st.binary(min_size=16, max_size=16)
values = st.integers(0, 2**32 - 1)
requests = st.builds(RequestEnvelope, ids, sessions, values, st.booleans(), st.booleans(), st.booleans())
replies = st.builds(ReplyEnvelope, ids, sessions, st.sampled_from([int(s) for s in ReplyStatus]), values)


@given(requests)
def test_a_request_survives_the_wire(envelope):
    assert envelopes.read_request(envelope.frame()) == envelope
    with pytest.raises(MalformedFrames):
        envelopes.read_reply(envelope.frame())


@given(replies)
def test_a_reply_survives_the_wire_and_keeps_the_identity(envelope):
    assert envelopes.read_reply(envelope.frame()) == envelope
    request = RequestEnvelope(envelope.request_id, envelope.session)
    assert envelopes.identity(envelope.frame()) == envelopes.identity(request.frame())


@given(st.binary(max_size=60).map(lambda tail: envelopes.MAGIC + tail) | st.binary(max_size=60))
def test_arbitrary_bytes_are_an_envelope_none_or_malformed(frame):
    for read in (envelopes.read_request, envelopes.read_reply):
        try:
            envelope = read(frame)
        except MalformedFrames:
            continue
        assert envelope is None or envelope.frame()[:8] == frame[:8]


@pytest.mark.parametrize("frame", [b"", b"plain body", b"\xc1MD", b"{}"])
def test_a_body_without_magic_is_no_envelope(frame):
    assert envelopes.read_request(frame) is None


@given(requests, values)
def test_only_the_budget_is_rewritten(envelope, budget):
    changed = envelopes.read_request(envelopes.with_budget(envelope.frame(), budget))
    assert changed.budget_ms == budget
    assert envelopes.with_budget(changed.frame(), envelope.budget_ms) == envelope.frame()


def test_a_budget_is_never_without_limit_by_rounding():
    assert envelopes.milliseconds(0.0001) == 1
    assert envelopes.milliseconds(-5) == 1
    assert envelopes.milliseconds(1.5) == 1500
    assert envelopes.milliseconds(1e12) == envelopes.BUDGET_LIMIT_MS
