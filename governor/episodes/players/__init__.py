"""Environments of several players (PettingZoo): what they are, which agent plays whom, and the course of an episode."""
