"""Processes of the operating system: how they are started, watched, killed and seen dead."""
