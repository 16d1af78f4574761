"""Values with a unit, as people write them: durations, sizes, and the field types of run files."""
