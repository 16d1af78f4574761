"""One run in work: the RunGovernor, effects, limits, liveness; and views of a run: resume, replay, explain."""
