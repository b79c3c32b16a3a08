"""Sends an answer, whole or as server-sent events, for as long as somebody is there to read it.

Knows nothing of what an answer holds. A client that goes away ends the work at once, on both ways.
"""

import asyncio
from collections.abc import AsyncIterator, Coroutine
from contextlib import aclosing, suppress
from typing import TypeVar

from fastapi import Response
from fastapi.responses import StreamingResponse
from starlette.requests import ClientDisconnect
from starlette.types import Receive, Scope, Send

from tokenmark.api.errors import ApiError
from tokenmark.api.generation import Generation
from tokenmark.api.replies import Chunk, Replies, chunks, collect

__all__ = ["EventStream", "unless_disconnected", "whole_response"]

Result = TypeVar("Result")


async def unless_disconnected(receive: Receive, work: Coroutine[None, None, Result]) -> Result:
    """What `work` returns, provided that the client waits for it.

    Raises:
        ClientDisconnect: the client left first; `work` has been cancelled.
    """
    working = asyncio.create_task(work)
    leaving = asyncio.create_task(_disconnection(receive))
    try:
        await asyncio.wait({working, leaving}, return_when=asyncio.FIRST_COMPLETED)
        if not working.done():
            raise ClientDisconnect
        return working.result()
    finally:
        working.cancel()
        leaving.cancel()
        await asyncio.gather(working, leaving, return_exceptions=True)


async def _disconnection(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def whole_response(generation: Generation, replies: Replies, receive: Receive) -> Response:
    """The response with all choices, once they have ended.

    Raises:
        ClientDisconnect: the client left first.
        ApiError: the engine failed.
    """
    async with aclosing(generation):
        whole = await unless_disconnected(receive, collect(generation, replies))
    return Response(whole.model_dump_json(), media_type="application/json")


class EventStream(StreamingResponse):
    """The response that sends each piece as it comes, then `[DONE]`.

    An error in the midst of the answer is sent as an event of its own, and nothing follows it.
    """

    media_type = "text/event-stream"

    def __init__(self, generation: Generation, replies: Replies, *, include_usage: bool) -> None:
        events = _events(chunks(generation, replies, include_usage=include_usage))
        super().__init__(events, headers={"Cache-Control": "no-cache"})
        self._generation = generation

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the response."""
        del scope
        async with aclosing(self._generation):
            with suppress(ClientDisconnect):
                await unless_disconnected(receive, self.stream_response(send))


async def _events(answer: AsyncIterator[Chunk]) -> AsyncIterator[str]:
    try:
        async for chunk in answer:
            yield f"data: {chunk.model_dump_json()}\n\n"
    except ApiError as error:
        # The status has been sent, so this is the one way left to tell.
        yield f"data: {error.body}\n\n"
        return
    yield "data: [DONE]\n\n"
