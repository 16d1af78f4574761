"""Hooks: commands and URLs that are told when something happens to a run."""
