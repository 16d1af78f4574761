"""The verbs for daemons that are reached from other machines."""
