import json
from collections.abc import AsyncIterator

import pytest
from fastapi import FastAPI

from tests.api.live_server import call, post
from tests.tiny_engine import (
    MODEL_NAME,
    SPOILS_LOGITS,
    STOPS_THE_ENGINE,
    tiny_engine,
)
from tokenmark.api.app import create_app
from tokenmark.api.body_limit import MAX_BODY_BYTES
from tokenmark.engine.text_codec import TextCodec

CHAT = "/v1/chat/completions"
TEXT = "/v1/completions"
PRIVATE = "marzipan"
MESSAGE = {"role": "user", "content": PRIVATE}
TEXT_BODY = {"model": MODEL_NAME, "prompt": PRIVATE, "max_tokens": 4}
CHAT_BODY = {"model": MODEL_NAME, "messages": [MESSAGE], "max_tokens": 4}


def refusal(
    app: FastAPI, path: str, body: object, *, status: int = 400, code: str = "invalid_request"
) -> tuple[str, str | None]:
    """The message and the param of an error response."""
    response = post(app, path, body)
    assert response.status_code == status, response.text
    assert response.headers["content-type"] == "application/json"
    assert PRIVATE not in response.text
    assert response.json().keys() == {"error"}
    error = response.json()["error"]
    assert error.keys() == {"message", "type", "param", "code"}
    assert error["code"] == code
    assert "\n" not in error["message"]
    return error["message"], error["param"]


COMMON_MISTAKES = [
    ({"temperature": 3}, "temperature", "temperature must be from 0 to 2, got 3"),
    ({"temperature": True}, "temperature", "temperature must be a valid number"),
    ({"temperature": "0.5"}, "temperature", "temperature must be a valid number"),
    ({"top_p": 0}, "top_p", "top_p must be above 0"),
    ({"top_k": 0}, "top_k", "top_k must be at least 1"),
    ({"top_k": 1.5}, "top_k", "top_k must be a valid integer"),
    ({"min_p": -1}, "min_p", "min_p must be from 0 to 1"),
    ({"n": 0}, "n", "n must be greater than or equal to 1"),
    ({"n": 17}, "n", "n must be less than or equal to 16"),
    ({"seed": 2**63}, "seed", "seed must be a signed 64-bit integer"),
    ({"seed": 10**300}, "seed", "seed must be less than"),
    ({"max_tokens": 0}, "max_tokens", "max_tokens must be at least 1"),
    ({"max_tokens": 4096}, "max_tokens", "exceed the context of 512 tokens"),
    ({"min_tokens": 5}, "min_tokens", "min_tokens must be from 0 to max_tokens, which is 4"),
    ({"stop": ""}, "stop", "is empty"),
    ({"stop": [PRIVATE, 1]}, "stop", "stop must be a string or a list of strings"),
    ({"stop": ["x"] * 17}, "stop", "stop may hold 16 strings, got 17"),
    ({"stop": "\ud800"}, None, "surrogate"),
    ({"stream": "yes"}, "stream", "stream must be a valid boolean"),
    ({"stream_options": {"include_usage": True}}, "stream_options", "set stream to true"),
    ({"stream": True, "stream_options": {"usage": 1}}, "usage", "unknown in stream_options"),
    ({"stream": True, "temperature": 3}, "temperature", "temperature must be"),
    ({"stream": True, "max_tokens": 4096}, "max_tokens", "exceed the context"),
    ({"watermarking": True}, "watermarking", "did you mean watermark?"),
    ({"watermark": True}, "watermark", "watermark must be an object"),
    ({"watermark": {"enabled": 1}}, "watermark.enabled", "watermark.enabled must be a valid"),
    ({"watermark": {"key": "x"}}, "key", "unknown in watermark: 'key'"),
    ({"watermark": {"enabled": False, "payload": 3}}, "watermark.payload", "needs a mark"),
    ({"watermark": {"payload": 3}}, "watermark.payload", "leave watermark.payload out"),
    ({"max_token": 3, "guided_json": {}}, "max_token", "'max_token' (did you mean max_tokens?), "),
    ({"ü" * 99: PRIVATE}, None, "..."),
    ({"\ud800\n": None}, None, r"'\ud800\n'"),
    ({"model": 3}, "model", "model must be a valid string"),
    ({"model": None}, "model", "model is required"),
    ({"logit_bias": {"5": 1}}, "logit_bias", "a bias on logits is not supported"),
    ({"presence_penalty": 0.5}, "presence_penalty", "penalties are not supported"),
    ({"frequency_penalty": -1}, "frequency_penalty", "penalties are not supported"),
]


@pytest.mark.parametrize(("path", "body"), [(CHAT, CHAT_BODY), (TEXT, TEXT_BODY)])
@pytest.mark.parametrize(("fields", "param", "message"), COMMON_MISTAKES)
def test_mistakes_of_both_kinds(
    marked_app: FastAPI,
    path: str,
    body: dict[str, object],
    fields: dict[str, object],
    param: str | None,
    message: str,
) -> None:
    said, about = refusal(marked_app, path, body | fields)
    assert message in said
    assert about == param


FORMS = "prompt must be a string, a list of strings, a list of token ids or a list of such lists"


@pytest.mark.parametrize(
    ("fields", "param", "message"),
    [
        ({"prompt": None}, "prompt", "prompt is required"),
        ({"prompt": ""}, "prompt", "the prompt has no tokens"),
        ({"prompt": []}, "prompt", FORMS),
        ({"prompt": [[]]}, "prompt", "the prompt has no tokens"),
        ({"prompt": 5}, "prompt", FORMS),
        ({"prompt": [PRIVATE, 5]}, "prompt", FORMS),
        ({"prompt": [[5, PRIVATE]]}, "prompt", FORMS),
        ({"prompt": [5, True]}, "prompt", FORMS),
        ({"prompt": [257]}, "prompt", "prompt id 257 is outside the vocabulary"),
        ({"prompt": [-1]}, "prompt", "prompt id -1 is outside the vocabulary"),
        ({"prompt": "\udfff"}, None, "surrogate"),
        ({"prompt": ["x"] * 65, "n": 2}, "prompt", "more than 128 answers"),
        ({"messages": [MESSAGE]}, "messages", "unknown in the request: 'messages'"),
        ({"echo": True}, "echo", "repeating the prompt in the answer is not supported"),
        ({"logprobs": 0}, "logprobs", "log probabilities are not supported"),
        ({"suffix": "x"}, "suffix", "text to be put before a suffix is not supported"),
        ({"best_of": 3}, "best_of", "leave best_of out"),
    ],
)
def test_mistakes_in_completions(
    marked_app: FastAPI, fields: dict[str, object], param: str | None, message: str
) -> None:
    said, about = refusal(marked_app, TEXT, TEXT_BODY | fields)
    assert message in said
    assert about == param


def user(content: object) -> dict[str, object]:
    return {"messages": [MESSAGE, {"role": "user", "content": content}]}


@pytest.mark.parametrize(
    ("fields", "param", "message"),
    [
        ({"messages": []}, "messages", "messages must have 1 or more items"),
        ({"messages": PRIVATE}, "messages", "messages must be a valid list"),
        ({"messages": [PRIVATE]}, "messages[0]", "messages[0] must be an object"),
        (user(None), "messages[1].content", "messages[1].content is required"),
        (user(7), "messages[1].content", "must be a string or a list of parts"),
        (user([{"type": "text"}]), "messages[1].content", "must be a string or a list of parts"),
        (user([{"type": "text", "text": PRIVATE, "x": 1}]), "x", "unknown in a part of a message"),
        (user([{"type": "image_url", "image_url": {}}]), "messages", "type 'image_url' are not"),
        ({"messages": [{"role": "tool", "content": PRIVATE}]}, "messages[0].role", "'system', "),
        ({"messages": [MESSAGE | {"tool_calls": [1]}]}, "tool_calls", "tool calls are not"),
        ({"messages": [MESSAGE | {"mood": 1}]}, "mood", "unknown in a message: 'mood'"),
        (
            {"messages": [MESSAGE, {"role": "system", "content": PRIVATE}]},
            "messages",
            "a system message comes first",
        ),
        ({"max_completion_tokens": 9}, "max_tokens", "mean the same"),
        ({"prompt": PRIVATE}, "prompt", "unknown in the request: 'prompt'"),
        ({"logprobs": True}, "logprobs", "log probabilities are not supported"),
        ({"tools": [{}]}, "tools", "tool calls are not supported"),
        ({"response_format": {"type": "json_object"}}, "response_format", "structured output is"),
    ],
)
def test_mistakes_in_chats(
    marked_app: FastAPI, fields: dict[str, object], param: str, message: str
) -> None:
    said, about = refusal(marked_app, CHAT, CHAT_BODY | fields)
    assert message in said
    assert about == param


@pytest.mark.parametrize("path", [CHAT, TEXT])
@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b"[1]",
        b'"marzipan"',
        b"\xff\xfe",
        b'{"prompt": "\xff"}',
        b"[" * 100_000,
        b'{"max_tokens": ' + b"9" * 5000 + b"}",
    ],
)
def test_bodies_that_are_no_object(marked_app: FastAPI, path: str, content: bytes) -> None:
    response = call(marked_app, "POST", path, content=content)
    assert response.status_code == 400
    assert response.json()["error"]["code"] == "invalid_json"
    assert PRIVATE not in response.text


def test_numbers_that_are_none(marked_app: FastAPI) -> None:
    content = json.dumps(TEXT_BODY | {"temperature": float("nan")}).encode()
    response = call(marked_app, "POST", TEXT, content=content)
    assert response.json()["error"]["param"] == "temperature"


@pytest.mark.parametrize(
    ("method", "path", "status", "code"),
    [
        ("GET", "/", 404, "unknown_path"),
        ("POST", "/v1/embeddings", 404, "unknown_path"),
        ("GET", "/v1/models/", 404, "model_not_found"),
        ("GET", "/v1/models/other/one", 404, "model_not_found"),
        ("GET", TEXT, 405, "method_not_allowed"),
        ("PUT", CHAT, 405, "method_not_allowed"),
        ("DELETE", "/v1/models", 405, "method_not_allowed"),
    ],
)
def test_paths_and_methods(
    marked_app: FastAPI, method: str, path: str, status: int, code: str
) -> None:
    response = call(marked_app, method, path)
    assert response.status_code == status
    assert response.json()["error"]["code"] == code
    assert ("allow" in response.headers) == (status == 405)


def test_the_model_must_be_the_one_served(marked_app: FastAPI) -> None:
    for path, body in ((CHAT, CHAT_BODY), (TEXT, TEXT_BODY)):
        said, about = refusal(
            marked_app, path, body | {"model": "gpt-4o"}, status=404, code="model_not_found"
        )
        assert said == "there is no model 'gpt-4o' here; this server has tiny"
        assert about == "model"


@pytest.mark.parametrize("content_type", ["text/plain", "application/x-www-form-urlencoded", ""])
def test_other_types_of_content(marked_app: FastAPI, content_type: str) -> None:
    content = json.dumps(TEXT_BODY).encode()
    response = call(marked_app, "POST", TEXT, content=content, content_type=content_type)
    assert response.status_code == 415
    assert response.json()["error"]["code"] == "unsupported_media_type"


def test_the_charset_may_be_named(marked_app: FastAPI) -> None:
    content = json.dumps(TEXT_BODY).encode()
    content_type = "application/json; charset=utf-8"
    response = call(marked_app, "POST", TEXT, content=content, content_type=content_type)
    assert response.status_code == 200


async def endless() -> AsyncIterator[bytes]:
    while True:
        yield b" " * 2**16


def test_bodies_have_a_limit(marked_app: FastAPI) -> None:
    padding = MAX_BODY_BYTES - len(json.dumps(TEXT_BODY).encode())
    largest = json.dumps(TEXT_BODY).encode() + b" " * padding
    assert call(marked_app, "POST", TEXT, content=largest).status_code == 200
    for content in (largest + b" ", endless()):
        response = call(marked_app, "POST", TEXT, content=content)
        assert response.status_code == 413
        assert response.json()["error"]["code"] == "body_too_large"
        assert response.headers["connection"] == "close"


@pytest.mark.parametrize("stream", [False, True])
def test_logits_from_which_nothing_can_be_drawn(marked_app: FastAPI, *, stream: bool) -> None:
    body = TEXT_BODY | {"prompt": PRIVATE + SPOILS_LOGITS, "stream": stream}
    said, _ = refusal(marked_app, TEXT, body, status=500, code="sampling_failed")
    assert "no usable logits" in said


def test_an_error_in_the_midst_of_a_stream(marked_app: FastAPI) -> None:
    body = TEXT_BODY | {"prompt": ["Tell me", SPOILS_LOGITS * 509], "stream": True}
    response = post(marked_app, TEXT, body | {"max_tokens": 3})
    assert response.status_code == 200
    *_, last = [line for line in response.text.split("\n\n") if line]
    error = json.loads(last.removeprefix("data: "))["error"]
    assert error["code"] == "sampling_failed"


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_an_engine_that_has_stopped() -> None:
    with tiny_engine() as engine:
        app = create_app(engine.model)
        for body in (TEXT_BODY | {"prompt": STOPS_THE_ENGINE}, TEXT_BODY):
            said, _ = refusal(app, TEXT, body, status=503, code="engine_stopped")
            assert "see the server's log" in said
        for path in ("/healthz", "/readyz"):
            assert call(app, "GET", path).status_code == 503
        assert call(app, "GET", "/metrics").status_code == 200


def test_a_defect_tells_nothing(marked_app: FastAPI, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_codec: TextCodec, text: str) -> list[int]:
        raise ValueError(text)

    monkeypatch.setattr(TextCodec, "encode", fail)
    refusal(marked_app, TEXT, TEXT_BODY, status=500, code="internal_error")
