"""User code: environments and experiments, good and bad. Runners and environment processes import these modules too."""
