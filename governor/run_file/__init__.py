"""The run file that a person writes: its model, how it is loaded, and the checks before anything runs."""
