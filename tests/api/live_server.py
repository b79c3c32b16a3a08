"""A real server on a free port of this machine, in a thread; and calls without one."""

import asyncio
import json
import socket
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import httpx
import uvicorn
from fastapi import FastAPI

from tests.tiny_engine import TinyEngine
from tokenmark.api.app import create_app

TIMEOUT_S = 20


@dataclass(frozen=True, slots=True)
class LiveServer:
    engine: TinyEngine
    port: int

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def connect(self) -> socket.socket:
        return socket.create_connection(("127.0.0.1", self.port), timeout=TIMEOUT_S)

    def send(self, path: str, body: dict[str, object]) -> socket.socket:
        """A connection on which a request has been sent and nothing has been read."""
        content = json.dumps(body).encode()
        head = (
            f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
            f"Content-Length: {len(content)}\r\n\r\n"
        )
        connection = self.connect()
        connection.sendall(head.encode() + content)
        return connection

    def client(self) -> httpx.Client:
        return httpx.Client(base_url=self.url, timeout=TIMEOUT_S, trust_env=False)

    def metric(self, line_start: str) -> float:
        """The value of one line of /metrics; 0 where the line has not appeared yet."""
        with self.client() as client:
            lines = client.get("/metrics").text.splitlines()
        values = [line.rsplit(" ", 1) for line in lines]
        return sum(float(value) for name, value in values if name == line_start)


@contextmanager
def live_server(engine: TinyEngine) -> Iterator[LiveServer]:
    config = uvicorn.Config(
        create_app(engine.model),
        port=0,
        lifespan="off",
        ws="none",
        log_level="critical",
        access_log=False,
    )
    server = uvicorn.Server(config)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        # Small buffers, taken over by every connection: a client that does not read is soon felt.
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
        port = listener.getsockname()[1]
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
        thread.start()
        try:
            wait_until(lambda: server.started)
            yield LiveServer(engine, port)
        finally:
            server.should_exit = True
            thread.join(TIMEOUT_S)


def wait_until(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + TIMEOUT_S
    while not holds():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.01)


def call(
    app: FastAPI,
    method: str,
    path: str,
    *,
    content: bytes | AsyncIterator[bytes] | None = None,
    content_type: str = "application/json",
) -> httpx.Response:
    """The response of an application without a server."""

    async def request() -> httpx.Response:
        transport = httpx.ASGITransport(app, raise_app_exceptions=False)
        headers = {"Content-Type": content_type}
        async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
            return await client.request(method, path, content=content, headers=headers)

    return asyncio.run(request())


def post(app: FastAPI, path: str, body: object) -> httpx.Response:
    return call(app, "POST", path, content=json.dumps(body).encode())


def events(response: httpx.Response) -> list[dict[str, Any]]:
    """The data of a stream, which ended as it should."""
    assert response.headers["content-type"].startswith("text/event-stream")
    *lines, last = [line for line in response.text.split("\n\n") if line]
    assert last == "data: [DONE]"
    return [json.loads(line.removeprefix("data: ")) for line in lines]
