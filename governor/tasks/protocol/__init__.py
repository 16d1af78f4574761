"""What a driver and a runner say to each other."""
