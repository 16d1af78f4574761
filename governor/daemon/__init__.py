"""The daemon: its slots and queue, the API for executors, recovery, and what supervises the broker and Ray."""
