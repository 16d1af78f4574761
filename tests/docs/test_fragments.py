import pytest

from tests.docs.fragments import faults_of


@pytest.mark.parametrize(
    ("language", "text"),
    [
        ("yaml", "name: lake\nlimits: {wall_clock: 15min}\n"),
        ("yaml", "phases:\n  - {name: check, inherits: train, simulate: {episodes: 100}}\n"),
        ("yaml", "simulate: {environment: room, agents: {red: romeo}, episodes: 3}\n"),
        ("yaml", "- {name: train, mode: eval}\n- {name: check}\n"),
        ("yaml", "until: [{metric: return, at_least: 0.95}]\n"),
        ("yaml", "x-common: &common {episodes: 3}\nphases: [{name: train, simulate: {<<: *common}}]\n"),
        ("toml", 'slots = 2\n[ray]\naddress = "local"\n'),
        ("json", '{"a": 1}'),
        ("text", "anything: ["),
    ],
)
def test_sound(language, text):
    assert faults_of(language, text) == []


@pytest.mark.parametrize(
    ("language", "text", "fault"),
    [
        ("yaml", "phases: [{name: train, simulat: {episodes: 3}}]\n", "unknown key 'simulat'"),
        ("yaml", "simulate: {environment: room, workrs: 3}\n", "unknown key 'workrs'"),
        ("yaml", "environments: {lake: {pol: 3}}\n", "unknown key 'pol'"),
        ("yaml", "limit: {wall_clock: 15min}\n", "unknown key 'limit'"),
        ("yaml", "limits: {wall_clock: soon}\n", "'soon' is no duration"),
        ("yaml", "name: a\nname: b\n", "stands twice"),
        ("yaml", "name: [", "is not YAML"),
        ("yaml", "text\n", "a fragment is a mapping"),
        ("toml", "slot = 2\n", "unknown key 'slot'"),
        ("toml", "slots 2\n", "Expected"),
        ("json", "{'a': 1}", "Expecting"),
    ],
)
def test_faulty(language, text, fault):
    assert fault in "\n".join(faults_of(language, text))
