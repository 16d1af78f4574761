"""Processes of the operating system: how they are found, and how they end."""
