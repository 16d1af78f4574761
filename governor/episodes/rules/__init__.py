"""The rules of a phase, pure: which episode is next, with which seed, and when it is over."""
