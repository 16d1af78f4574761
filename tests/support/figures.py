"""Running figures for tests, made from records of episodes."""

import msgspec

from governor.episodes.rules.statistics import PhaseStatistics


def with_done(command, records):
    """The command to play a phase of which these episodes have ended."""
    statistics = PhaseStatistics(command)
    for record in records:
        statistics.add(record)
    return msgspec.structs.replace(command, done=statistics.figures)
