"""A copy of a daemon's state in one file, while the daemon works, and the way back."""
