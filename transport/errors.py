"""Every error of the transport: one root; each names the cause, with ids as attributes.

A request ends in a reply or in exactly one `RequestError`. After `WorkerLost`, `ConnectionLost`, `DeadlineExceeded` and
`PartialsLost` the work may have been done; the others tell whether it was.
"""

from __future__ import annotations


class TransportError(Exception):
    """Root of all errors that the transport raises on purpose."""


class BadEndpoint(TransportError):
    """Our caller's fault: an endpoint that is no ipc or tcp address, too long, or open to other machines."""

    def __init__(self, endpoint: str, reason: str) -> None:
        self.endpoint = endpoint
        self.reason = reason
        super().__init__(f"bad endpoint {endpoint!r}: {reason}")


class CannotBind(TransportError):
    """The operating system does not let us listen at the endpoint."""

    def __init__(self, endpoint: str, reason: str) -> None:
        self.endpoint = endpoint
        self.reason = reason
        super().__init__(f"cannot listen at {endpoint}: {reason}")


class BadKey(TransportError):
    """A text that is no key of CURVE."""


class TooFewFiles(TransportError):
    """The process may open too few files: each connection is one. `needed` is the least limit that makes sense."""

    def __init__(self, *, limit: int, needed: int) -> None:
        self.limit = limit
        self.needed = needed
        super().__init__(f"the limit of open files is {limit}, a broker needs {needed} (ulimit -n)")


class EndpointInUse(CannotBind):
    """Another process listens at the endpoint, or something that is no socket lies at its path."""


class MalformedFrames(TransportError):
    """The peer's fault: frames that are no MDP/0.2 command, or an envelope that is none."""


class RequestError(TransportError):
    """A request that ended without a reply. `service` is its destination."""

    def __init__(self, service: str, message: str) -> None:
        self.service = service
        super().__init__(f"{service}: {message}")


class DeadlineExceeded(RequestError):
    """No reply within the time that the caller gave, in seconds in `timeout`."""

    def __init__(self, service: str, *, timeout: float, detail: str = "no reply") -> None:
        self.timeout = timeout
        super().__init__(service, f"{detail} within {timeout:g} s")


class BrokerUnreachable(DeadlineExceeded):
    """The deadline passed and the request was never sent: no process listens at `endpoint`, or it has `refused` us, for this reason.
    Nothing was done.
    """

    def __init__(self, service: str, *, timeout: float, endpoint: str, refused: str = "") -> None:
        self.endpoint = endpoint
        self.refused = refused
        why = (
            f"the broker at {endpoint} lets us not in ({refused})"
            if refused
            else f"nobody listens at {endpoint}"
        )
        super().__init__(service, timeout=timeout, detail=f"{why}, not sent")


class ServiceNotFound(RequestError):
    """No worker registered for the service in time. Nothing was done."""


class RequestQueueFull(RequestError):
    """The broker holds as many requests as it may. Nothing was done; the same call may succeed later."""


class TooLarge(RequestError):
    """The body is larger than the broker accepts. Nothing was done."""


class RequestNotPermitted(RequestError):
    """The service can't be reached through this socket of the broker. Nothing was done."""


class WorkerLost(RequestError):
    """The worker that had the request exited or disconnected before its reply; for an idempotent one, two workers in a row, or no other one
    came in time.
    """


class ConnectionLost(RequestError):
    """The connection to the broker broke while the request was in flight; for an idempotent one, there was no other one until its deadline."""


class ClientClosed(RequestError):
    """This client was closed while the request was in flight, or before it."""


class PartialsLost(RequestError):
    """Parts of a stream are missing, because they were read too slowly. All earlier parts are complete and in order."""


class RemoteError(RequestError):
    """The handler at the service raised; `type_name` and `remote_message` are those of its error."""

    def __init__(self, service: str, *, type_name: str, remote_message: str) -> None:
        self.type_name = type_name
        self.remote_message = remote_message
        super().__init__(service, f"{type_name}: {remote_message}")
