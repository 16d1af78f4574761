"""One run in work: the RunGovernor, effects, limits, liveness; and what is told of a run: resume, replay, explain."""
