import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import httpx
import pytest

from tests.api.live_server import TIMEOUT_S
from tokenmark.api.server import bind
from tokenmark.watermark.errors import AddressError

# Answers "quick" at once, and on any other path begins an answer without an end.
PROGRAM = """
import asyncio
from tokenmark.api import server

async def app(scope, receive, send):
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": b"quick", "more_body": True})
    if scope["path"] != "/quick":
        await asyncio.sleep(3600)
    await send({"type": "http.response.body", "body": b""})

server._GRACE_S = 1
with server.bind("127.0.0.1", 0) as listener:
    port = listener.getsockname()[1]
    server.serve(app, listener, on_ready=lambda: print(port, flush=True))
print("stopped", flush=True)
"""


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "127.0.0.2"])
def test_a_free_port_is_taken_at_once(host: str) -> None:
    with bind(host, 0) as listener:
        address = listener.getsockname()
        with socket.create_connection(address, timeout=TIMEOUT_S):
            assert address[1] > 0


def test_a_busy_port_is_told_with_the_way_out() -> None:
    with bind("127.0.0.1", 0) as listener:
        port = listener.getsockname()[1]
        with pytest.raises(
            AddressError, match=f"port {port} on 127.0.0.1 is in use; choose another with --port"
        ):
            bind("127.0.0.1", port)


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.1.5", "example.org", ""])  # noqa: S104 - refused
def test_only_loopback_addresses_are_served(host: str) -> None:
    with pytest.raises(AddressError, match="--host must be a loopback address"):
        bind(host, 0)


@contextmanager
def served() -> Iterator[tuple[subprocess.Popen[str], str]]:
    """A process of its own that serves, and its address."""
    process = subprocess.Popen(
        [sys.executable, "-c", PROGRAM],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    try:
        yield process, f"http://127.0.0.1:{int(process.stdout.readline())}"
    finally:
        process.kill()
        process.communicate()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_the_server_cleanly(number: signal.Signals) -> None:
    with served() as (process, url), httpx.Client(base_url=url, trust_env=False) as client:
        assert client.get("/quick").text == "quick"
        process.send_signal(number)
        assert process.communicate(timeout=TIMEOUT_S) == ("stopped\n", "")
        assert process.returncode == 0


def test_an_open_answer_is_cut_off_after_the_grace() -> None:
    with (
        served() as (process, url),
        httpx.Client(base_url=url, timeout=TIMEOUT_S, trust_env=False) as client,
        client.stream("GET", "/endless") as response,
    ):
        parts = response.iter_bytes()
        assert next(parts) == b"quick"
        process.send_signal(signal.SIGTERM)
        out, err = process.communicate(timeout=TIMEOUT_S)
        assert process.returncode == 0
        assert out == "stopped\n"
        assert err.count("\n") == 1
        assert "Traceback" not in err
        with pytest.raises(httpx.RemoteProtocolError):
            next(parts)
