"""What users would write: environments and experiments. Runners and environment processes import these modules too."""
