"""The driver's side of runners and nodes: processes, streams, the cluster."""
