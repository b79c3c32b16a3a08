"""Reads the body of a request before anything else does, and refuses it where it is too large.

Knows nothing of what a body means. The limit holds while reading, whether or not the client has
declared a length.
"""

from typing import Final

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from tokenmark.api.errors import ApiError, ErrorCode

__all__ = ["MAX_BODY_BYTES", "BodyLimit"]

MAX_BODY_BYTES: Final = 10 * 2**20
_MAX_DRAINED_BODIES: Final = 8


class BodyLimit:
    """ASGI middleware.

    Args:
        app: gets bodies of at most `max_bytes` bytes, whole.
        max_bytes: the limit.
    """

    def __init__(self, app: ASGIApp, *, max_bytes: int = MAX_BODY_BYTES) -> None:
        self._app = app
        self._max_bytes = max_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        try:
            body = await self._read(scope, receive)
        except ApiError as error:
            await self._drain(receive)
            await error.response()(scope, receive, send)
            return
        if body is not None:
            await self._app(scope, _replay(body, receive), send)

    async def _read(self, scope: Scope, receive: Receive) -> bytes | None:
        """The whole body, or None from a client that has left."""
        declared = Headers(scope=scope).get("content-length", "")
        if declared.isdecimal() and int(declared) > self._max_bytes:
            raise self._too_large()
        body = bytearray()
        more = True
        while more:
            message = await receive()
            if message["type"] == "http.disconnect":
                return None
            body += message.get("body", b"")
            if len(body) > self._max_bytes:
                raise self._too_large()
            more = message.get("more_body", False)
        return bytes(body)

    async def _drain(self, receive: Receive) -> None:
        """Read on for a while, since a client that is still sending would not see the answer."""
        left = _MAX_DRAINED_BODIES * self._max_bytes
        while left > 0:
            message = await receive()
            left -= len(message.get("body", b"")) or 1
            if message["type"] == "http.disconnect" or not message.get("more_body", False):
                return

    def _too_large(self) -> ApiError:
        return ApiError(
            ErrorCode.BODY_TOO_LARGE,
            f"the body has more than {self._max_bytes} bytes; send less at once",
            # The rest of the body is not read, so nothing can follow it.
            headers={"Connection": "close"},
        )


def _replay(body: bytes, receive: Receive) -> Receive:
    """A `receive` that begins with the whole body."""
    messages: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def next_message() -> Message:
        return messages.pop() if messages else await receive()

    return next_message
