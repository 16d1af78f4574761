"""The record of a run: what each step adds to it, and what is made of it: result, failures, history, resume, replay."""
