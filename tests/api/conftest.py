"""Applications around tiny engines, shared by the tests of a session."""

from collections.abc import Iterator

import pytest
from fastapi import FastAPI

from tests.api.live_server import LiveServer, live_server
from tests.tiny_engine import tiny_engine, tiny_mark
from tokenmark.api.app import create_app
from tokenmark.watermark.payload import PayloadLayout
from tokenmark.watermark.scheme import Scheme


@pytest.fixture(scope="session")
def marked_app() -> Iterator[FastAPI]:
    with tiny_engine(mark=tiny_mark()) as engine:
        yield create_app(engine.model)


@pytest.fixture(scope="session")
def unmarked_app() -> Iterator[FastAPI]:
    with tiny_engine() as engine:
        yield create_app(engine.model)


@pytest.fixture(scope="session")
def payload_app() -> Iterator[FastAPI]:
    scheme = Scheme(name="tm1", payload=PayloadLayout(slots=2, bits=4))
    with tiny_engine(mark=tiny_mark(scheme)) as engine:
        yield create_app(engine.model)


@pytest.fixture(scope="session")
def server() -> Iterator[LiveServer]:
    """A marking server that anybody may use and nobody may break."""
    with tiny_engine(mark=tiny_mark()) as engine, live_server(engine) as live:
        yield live
