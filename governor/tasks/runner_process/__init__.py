"""Inside a runner: the process on Ray that executes tasks."""
