"""The driver's side of the runners: start, messages, termination."""
