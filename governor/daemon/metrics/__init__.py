"""OpenMetrics of the daemon: what is measured, the time of its event loop, and the server that gives them."""
