"""The parts of the core: pure, without clock, socket or Ray."""
