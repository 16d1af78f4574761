"""The executor: the client that submits and follows runs. Speaks MDP/0.2 to the daemon's broker.

Rules:
1. Every call has a deadline and ends in a reply or a typed error of `governor.errors`.
2. `submit` always sends a key (a random one by default), so that sending it again is safe.
3. `watch` yields numbered events without gaps or duplicates, and continues after a broken connection.
4. Calls wait for a daemon that is gone: if it is restarted within `patience`, nothing is lost.
"""

from governor.executor.client import Executor

__all__ = ["Executor"]
