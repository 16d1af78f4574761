"""The run file that a person writes: its model, how it is loaded, and what is checked before anything runs."""
