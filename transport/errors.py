"""Every error of the transport on one page: one root, whose fault it is, ids as attributes.

A request ends in a reply or in exactly one `RequestError`. Whether the work was done is known only for those that
say so: after `WorkerLost`, `ConnectionLost`, `DeadlineExceeded` and `PartialsLost` it may have been done.
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
    """A request that ended without a reply. `service` is whom it was for."""

    def __init__(self, service: str, message: str) -> None:
        self.service = service
        super().__init__(f"{service}: {message}")


class DeadlineExceeded(RequestError):
    """No reply within the time that the caller gave, in seconds in `timeout`."""

    def __init__(self, service: str, *, timeout: float, detail: str = "no reply") -> None:
        self.timeout = timeout
        super().__init__(service, f"{detail} within {timeout:g} s")


class BrokerUnreachable(DeadlineExceeded):
    """The deadline passed and the request was never sent: nobody listens at `endpoint`. Nothing was done."""

    def __init__(self, service: str, *, timeout: float, endpoint: str) -> None:
        self.endpoint = endpoint
        super().__init__(service, timeout=timeout, detail=f"nobody listens at {endpoint}, not sent")


class ServiceNotFound(RequestError):
    """No worker registered for the service in time. Nothing was done."""


class RequestQueueFull(RequestError):
    """The broker holds as many requests as it may. Nothing was done; the same call may be taken later."""


class TooLarge(RequestError):
    """The body is larger than the broker takes. Nothing was done."""


class RequestNotPermitted(RequestError):
    """The broker's socket at which this was asked does not lead to the service. Nothing was done."""


class WorkerLost(RequestError):
    """The worker that had the request died or hung up before its reply; of an idempotent one, two workers in a row."""


class ConnectionLost(RequestError):
    """The connection to the broker broke while the request was under way."""


class ClientClosed(RequestError):
    """This client was closed while the request was under way, or before it."""


class PartialsLost(RequestError):
    """Parts of a stream are missing, because they were read too slowly. What came before is complete and in order."""


class RemoteError(RequestError):
    """The handler at the service raised; `type_name` and `remote_message` are what it raised."""

    def __init__(self, service: str, *, type_name: str, remote_message: str) -> None:
        self.type_name = type_name
        self.remote_message = remote_message
        super().__init__(service, f"{type_name}: {remote_message}")
