"""Environment and agent each in its conductor: leases and sessions over the broker, steps over direct sockets."""
