"""Majordomo (MDP/0.2, RFC 18) on asyncio: broker, worker, client. Knows bytes, frames and sockets, nothing of runs."""
