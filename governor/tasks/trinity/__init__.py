"""Scheduler and RolloutCoordinator as Trinity-RFT's users know them, with their statistics."""
