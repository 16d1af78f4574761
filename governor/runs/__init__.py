"""One run in work: the RunGovernor, effects, limits, liveness, explain; its record: result, failures, resume, replay."""
