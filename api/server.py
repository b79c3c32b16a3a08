"""Puts an application on a port of this machine until it is told to stop. Knows no application.

The port is taken first, long before a model is loaded, so that one in use is told at once; clients
that connect in the meantime wait.
"""

import asyncio
import errno
import ipaddress
import logging
import signal
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Final

import uvicorn
from starlette.types import ASGIApp

from tokenmark.watermark.errors import AddressError

__all__ = ["bind", "serve"]

_GRACE_S: Final = 5


def bind(host: str, port: int) -> socket.socket:
    """A listening socket; port 0 takes any that is free.

    Raises:
        AddressError: the host is no loopback address, or the port cannot be had.
    """
    address = _loopback_address(host)
    is_v6 = address.version == 6  # noqa: PLR2004 - the protocol's own number
    listener = socket.socket(socket.AF_INET6 if is_v6 else socket.AF_INET)
    try:
        # Connections of a server that has just stopped must not block the port.
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((str(address), port))
        listener.listen()
    except OSError as error:
        listener.close()
        reason = "is in use" if error.errno == errno.EADDRINUSE else f"cannot be had ({error})"
        raise AddressError(f"port {port} on {host} {reason}; choose another with --port") from error
    return listener


def _loopback_address(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address:
    try:
        address = ipaddress.ip_address("127.0.0.1" if host == "localhost" else host)
    except ValueError:
        address = None
    if address is None or not address.is_loopback:
        raise AddressError(
            "--host must be a loopback address (127.0.0.1, ::1 or localhost) until credentials are "
            f"supported, got {host!r}"
        )
    return address


class _Server(uvicorn.Server):
    """A server that says when it takes requests."""

    def __init__(self, config: uvicorn.Config, on_ready: Callable[[], None]) -> None:
        super().__init__(config)
        self._on_ready = on_ready

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self._on_ready()


def serve(app: ASGIApp, listener: socket.socket, *, on_ready: Callable[[], None]) -> None:
    """Serve until SIGINT or SIGTERM; returns once open requests have ended or were cut off.

    Args:
        app: what to serve; it gets no lifespan events.
        listener: from `bind`; closed in the end.
        on_ready: called when requests are taken.
    """
    config = uvicorn.Config(
        app,
        lifespan="off",
        ws="none",
        log_level="warning",
        access_log=False,
        server_header=False,
        timeout_graceful_shutdown=_GRACE_S,
    )
    server = _Server(config, on_ready)
    with _stopping_on_signals(server), _quiet_about_cut_off_requests():
        server.run(sockets=[listener])


@contextmanager
def _quiet_about_cut_off_requests() -> Iterator[None]:
    """Keep out of the log the tracebacks of requests that the server itself ended at last."""

    def is_defect(record: logging.LogRecord) -> bool:
        return record.exc_info is None or record.exc_info[0] is not asyncio.CancelledError

    logger = logging.getLogger("uvicorn.error")
    logger.addFilter(is_defect)
    try:
        yield
    finally:
        logger.removeFilter(is_defect)


@contextmanager
def _stopping_on_signals(server: uvicorn.Server) -> Iterator[None]:
    """Let a signal mean a clean stop and nothing more.

    The server handles signals itself while it runs, and raises them once more after it has stopped
    for the handlers that were there before; those would end the process as if it had failed.
    """

    def stop(_signal: int, _frame: FrameType | None) -> None:
        server.should_exit = True

    signals = (signal.SIGINT, signal.SIGTERM)
    before = [signal.signal(number, stop) for number in signals]
    try:
        yield
    finally:
        for number, handler in zip(signals, before, strict=True):
            signal.signal(number, handler)
