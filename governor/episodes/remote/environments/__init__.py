"""The environments of a conductor: a pool of processes, one environment (or one vector) in each."""
