"""Clients that leave, or read slowly: their answers end, and others go on."""

import json
import socket
import time
from collections.abc import Iterator

import pytest

from tests.api.live_server import TIMEOUT_S, LiveServer, live_server, wait_until
from tests.tiny_engine import MODEL_NAME, tiny_engine
from tokenmark.engine.config import EngineConfig

LONG = {"model": MODEL_NAME, "prompt": "Hello", "max_tokens": 4000, "ignore_eos": True}
ABORTED = 'tokenmark_answers_total{reason="abort"}'
FINISHED = 'tokenmark_answers_total{reason="length"}'


@pytest.fixture(scope="module")
def slow_server() -> Iterator[LiveServer]:
    """An answer of 4000 tokens takes far longer than any test waits."""
    config = EngineConfig(max_model_len=4096, n_blocks=512, max_running=2)
    with tiny_engine(config, step_s=0.01) as engine, live_server(engine) as live:
        yield live


def n_aborted(server: LiveServer) -> int:
    return int(server.metric(ABORTED))


def is_idle(server: LiveServer) -> bool:
    running = server.metric("tokenmark_requests_running")
    waiting = server.metric("tokenmark_requests_waiting")
    return running == waiting == server.engine.pool.n_held == 0


def wait_for_aborts(server: LiveServer, n: int) -> None:
    wait_until(lambda: n_aborted(server) == n)


def wait_for_tokens(server: LiveServer) -> None:
    """The load is stated behind each step, so the first tokens have been drawn."""
    wait_until(lambda: server.metric("tokenmark_requests_running") > 0)


def receive_until(connection: socket.socket, mark: bytes) -> bytes:
    received = b""
    while mark not in received:
        part = connection.recv(4096)
        assert part, "the server closed the connection"
        received += part
    return received


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("n", [1, 2])
def test_a_client_that_leaves_holds_no_blocks(
    slow_server: LiveServer, n: int, *, stream: bool
) -> None:
    before = n_aborted(slow_server)
    with slow_server.send("/v1/completions", LONG | {"stream": stream, "n": n}) as connection:
        wait_for_tokens(slow_server)
        if stream:
            receive_until(connection, b"data: ")
    wait_for_aborts(slow_server, before + n)
    wait_until(lambda: is_idle(slow_server))


@pytest.mark.parametrize("stream", [False, True])
def test_a_client_that_leaves_while_it_waits(slow_server: LiveServer, *, stream: bool) -> None:
    before = n_aborted(slow_server)
    with slow_server.send("/v1/completions", LONG | {"n": 2}):
        wait_for_tokens(slow_server)
        with slow_server.send("/v1/completions", LONG | {"stream": stream}):
            wait_until(lambda: slow_server.metric("tokenmark_requests_waiting") == 1)
        wait_for_aborts(slow_server, before + 1)
        wait_until(lambda: slow_server.metric("tokenmark_requests_waiting") == 0)
        assert slow_server.metric("tokenmark_requests_running") == 2
    wait_for_aborts(slow_server, before + 3)
    wait_until(lambda: is_idle(slow_server))


def test_a_client_that_leaves_in_the_midst_of_its_request(slow_server: LiveServer) -> None:
    with slow_server.connect() as connection:
        connection.sendall(
            b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\n"
            b"Content-Type: application/json\r\nContent-Length: 1000\r\n\r\n{"
        )
    with slow_server.client() as client:
        assert client.get("/healthz").status_code == 200
    assert is_idle(slow_server)


def test_the_first_chunk_comes_before_the_last_is_drawn(slow_server: LiveServer) -> None:
    with slow_server.send("/v1/completions", LONG | {"stream": True}) as connection:
        received = receive_until(connection, b"data: ")
        assert slow_server.engine.pool.n_held > 0
    assert b"200 OK" in received
    assert b"content-type: text/event-stream" in received
    assert b"cache-control: no-cache" in received
    wait_until(lambda: is_idle(slow_server))


def test_a_slow_reader_holds_nobody_up(server: LiveServer) -> None:
    body = {"model": MODEL_NAME, "prompt": "Hello", "max_tokens": 500, "ignore_eos": True, "n": 2}
    before = server.metric(FINISHED)
    with socket.socket() as connection:
        # Far less than the stream has, so that the server cannot send on until it is read.
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        connection.settimeout(TIMEOUT_S)
        connection.connect(("127.0.0.1", server.port))
        content = json.dumps(body | {"stream": True, "temperature": 0}).encode()
        connection.sendall(
            b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"
            b"Content-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(content) + content
        )
        with server.client() as client:
            short = {"model": MODEL_NAME, "prompt": "Hello", "max_tokens": 2}
            assert client.post("/v1/completions", json=short).status_code == 200
        wait_until(lambda: server.metric(FINISHED) >= before + 2)
        assert server.engine.pool.n_held == 0
        received = b"".join(iter(lambda: connection.recv(2**16), b""))
    assert received.count(b'"finish_reason":"length"') == 2
    assert b"data: [DONE]\n\n" in received


def test_a_stream_goes_on_while_its_client_is_silent(slow_server: LiveServer) -> None:
    body = LONG | {"stream": True, "max_tokens": 20, "min_tokens": 20}
    with slow_server.send("/v1/completions", body) as connection:
        time.sleep(0.3)
        received = receive_until(connection, b"data: [DONE]")
    assert received.count(b"data: {") == 21
