"""Text environments: in a process of their own, or behind an HTTP server."""
