"""Daemons that are reached from other machines: keys, roles, contexts of clients."""
