"""Environment and agent each in its conductor: leases and seats over the broker, steps over direct sockets."""
