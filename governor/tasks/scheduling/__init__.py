"""The scheduling core, pure: graphs, batches, attempts, time. Events in, effects out."""
