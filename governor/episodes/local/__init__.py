"""Environment and agent in the simulation's own process: `transport: in_process`."""
