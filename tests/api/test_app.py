from typing import Any

import pytest
from fastapi import FastAPI

from tests.api.live_server import call, events, post
from tests.tiny_engine import ENDS_AT_ONCE, MODEL_NAME, tiny_engine, tiny_mark
from tokenmark.api.app import create_app
from tokenmark.engine.config import EngineConfig

KEY_ID = tiny_mark().key.key_id
CHAT = "/v1/chat/completions"
TEXT = "/v1/completions"
MESSAGES = [{"role": "user", "content": "Tell me of marks."}]


def body_for(path: str, **fields: object) -> dict[str, object]:
    prompt = {"messages": MESSAGES} if path == CHAT else {"prompt": "Tell me"}
    return {"model": MODEL_NAME, "max_tokens": 24} | prompt | fields


def ask(app: FastAPI, path: str, **fields: object) -> dict[str, Any]:
    response = post(app, path, body_for(path, **fields))
    assert response.status_code == 200, response.text
    answer: dict[str, Any] = response.json()
    return answer


def stream(app: FastAPI, path: str, **fields: object) -> list[dict[str, Any]]:
    response = post(app, path, body_for(path, stream=True, **fields))
    assert response.status_code == 200, response.text
    return events(response)


def texts(answer: dict[str, Any]) -> list[str]:
    return [
        choice["message"]["content"] if "message" in choice else choice["text"]
        for choice in answer["choices"]
    ]


def streamed_texts(chunks: list[dict[str, Any]], n: int = 1) -> list[str]:
    parts: list[list[str]] = [[] for _ in range(n)]
    for chunk in chunks:
        for choice in chunk["choices"]:
            text = choice["delta"].get("content", "") if "delta" in choice else choice["text"]
            parts[choice["index"]].append(text)
    return ["".join(part) for part in parts]


def test_models(marked_app: FastAPI) -> None:
    listed = call(marked_app, "GET", "/v1/models").json()
    assert listed["object"] == "list"
    [card] = listed["data"]
    assert (card["id"], card["object"]) == (MODEL_NAME, "model")
    assert call(marked_app, "GET", f"/v1/models/{MODEL_NAME}").json() == card


def test_a_whole_chat_answer(marked_app: FastAPI) -> None:
    answer = ask(marked_app, CHAT)
    assert answer["object"] == "chat.completion"
    assert answer["id"].startswith("chatcmpl-")
    assert answer["model"] == MODEL_NAME
    [choice] = answer["choices"]
    assert choice["message"].keys() == {"role", "content", "refusal"}
    assert choice["finish_reason"] in {"stop", "length"}
    usage = answer["usage"]
    assert usage["prompt_tokens"] == len("[user]Tell me of marks.[assistant]")
    assert 1 <= usage["completion_tokens"] <= 24
    assert usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"]


def test_a_whole_completion(marked_app: FastAPI) -> None:
    answer = ask(marked_app, TEXT, min_tokens=5, max_tokens=5)
    assert answer["object"] == "text_completion"
    assert answer["id"].startswith("cmpl-")
    [choice] = answer["choices"]
    assert len(choice["text"]) == 5
    assert choice["finish_reason"] == "length"
    assert choice["logprobs"] is None
    assert answer["usage"] == {"prompt_tokens": 7, "completion_tokens": 5, "total_tokens": 12}


def test_default_lengths(unmarked_app: FastAPI) -> None:
    completion = ask(unmarked_app, TEXT, max_tokens=None, ignore_eos=True)
    assert completion["usage"]["completion_tokens"] == 16
    chat = ask(unmarked_app, CHAT, max_tokens=None, ignore_eos=True)
    assert chat["usage"]["total_tokens"] == 512
    squeezed = ask(unmarked_app, TEXT, max_tokens=None, ignore_eos=True, prompt="x" * 505)
    assert squeezed["usage"]["completion_tokens"] == 7


@pytest.mark.parametrize(
    ("prompt", "n_choices", "n_tokens"),
    [
        ("ab", 1, 2),
        (["ab", "cde"], 2, 5),
        ([97, 98], 1, 2),
        ([[97], [98, 99]], 2, 3),
    ],
)
def test_forms_of_prompts(
    unmarked_app: FastAPI, prompt: object, n_choices: int, n_tokens: int
) -> None:
    answer = ask(unmarked_app, TEXT, prompt=prompt, n=2, max_tokens=2)
    assert [choice["index"] for choice in answer["choices"]] == list(range(2 * n_choices))
    assert answer["usage"]["prompt_tokens"] == n_tokens


def test_ids_and_text_are_the_same_prompt(unmarked_app: FastAPI) -> None:
    ids = ask(unmarked_app, TEXT, prompt=list(b"Tell me"), temperature=0)
    assert texts(ids) == texts(ask(unmarked_app, TEXT, temperature=0))


def test_forms_of_messages(unmarked_app: FastAPI) -> None:
    in_parts = [
        {"role": "developer", "content": "Be brief."},
        {
            "role": "user",
            "content": [{"type": "text", "text": "Tell "}, {"type": "text", "text": "me."}],
        },
        {"role": "assistant", "content": "Of what?", "refusal": None, "tool_calls": None},
        {"role": "user", "content": "Marks.", "name": "ann"},
    ]
    plain = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Tell me."},
        {"role": "assistant", "content": "Of what?"},
        {"role": "user", "content": "Marks."},
    ]
    answers = [ask(unmarked_app, CHAT, messages=form, temperature=0) for form in (in_parts, plain)]
    assert texts(answers[0]) == texts(answers[1])


@pytest.mark.parametrize("path", [CHAT, TEXT])
@pytest.mark.parametrize("stop", [None, "e", ["zz", "t"]])
def test_a_stream_holds_the_same_answer(unmarked_app: FastAPI, path: str, stop: object) -> None:
    fields = {"seed": 7, "n": 2, "stop": stop, "max_tokens": 60}
    whole = ask(unmarked_app, path, **fields)
    chunks = stream(unmarked_app, path, **fields)
    assert streamed_texts(chunks, 2) == texts(whole)
    assert len({chunk["id"] for chunk in chunks}) == 1
    reasons = {
        choice["index"]: choice["finish_reason"]
        for chunk in chunks
        for choice in chunk["choices"]
        if choice["finish_reason"]
    }
    assert reasons == {choice["index"]: choice["finish_reason"] for choice in whole["choices"]}


def test_a_stop_string_ends_the_answer(unmarked_app: FastAPI) -> None:
    free = texts(ask(unmarked_app, TEXT, temperature=0))[0]
    stopped = ask(unmarked_app, TEXT, temperature=0, stop=[free[6:9]])
    assert texts(stopped) == [free[:6]]
    assert stopped["choices"][0]["finish_reason"] == "stop"


def test_a_chat_stream_begins_with_the_roles(marked_app: FastAPI) -> None:
    first, second, *rest = stream(marked_app, CHAT, n=2)
    role = {"role": "assistant", "content": ""}
    assert [chunk["choices"][0]["delta"] for chunk in (first, second)] == [role, role]
    assert [chunk["choices"][0]["index"] for chunk in (first, second)] == [0, 1]
    assert all("role" not in chunk["choices"][0]["delta"] for chunk in rest)


@pytest.mark.parametrize("path", [CHAT, TEXT])
def test_no_chunk_is_empty_before_the_end(marked_app: FastAPI, path: str) -> None:
    chunks = stream(marked_app, path, stop="never")[path == CHAT :]
    for chunk in chunks[:-1]:
        [choice] = chunk["choices"]
        assert choice["finish_reason"] is None
        assert choice["watermark"] is None
        assert chunk["watermark"] is None
        assert choice["delta"]["content"] if path == CHAT else choice["text"]
    [last] = chunks[-1]["choices"]
    assert last["finish_reason"] is not None
    assert last.get("delta", {}) == {}


@pytest.mark.parametrize("path", [CHAT, TEXT])
def test_usage_in_a_stream(marked_app: FastAPI, path: str) -> None:
    *chunks, last = stream(marked_app, path, stream_options={"include_usage": True}, n=2)
    assert last["choices"] == []
    assert last["usage"]["completion_tokens"] >= 2
    assert last["watermark"]["key_id"] == KEY_ID
    assert all(chunk["usage"] is None and chunk["watermark"] is None for chunk in chunks)


def test_an_empty_answer(marked_app: FastAPI) -> None:
    answer = ask(marked_app, TEXT, prompt=ENDS_AT_ONCE)
    assert texts(answer) == [""]
    assert answer["choices"][0]["finish_reason"] == "stop"
    [chunk] = stream(marked_app, TEXT, prompt=ENDS_AT_ONCE)
    assert chunk["watermark"]["reason"] == "too_short"


@pytest.mark.parametrize("path", [CHAT, TEXT])
def test_seeds_repeat_unmarked_answers(marked_app: FastAPI, path: str) -> None:
    off = {"watermark": {"enabled": False}}
    once, again, other = (ask(marked_app, path, seed=seed, n=2, **off) for seed in (5, 5, 6))
    assert texts(once) == texts(again)
    assert texts(once) != texts(other)
    assert len(set(texts(once))) == 2


def report(
    n_marked: int, reason: str | None, *, key_id: str | None = KEY_ID
) -> dict[str, str | int | None]:
    return {
        "applied": n_marked > 0,
        "scheme": None if key_id is None else "tm1",
        "key_id": key_id,
        "marked_tokens": n_marked,
        "reason": reason,
    }


@pytest.mark.parametrize("path", [CHAT, TEXT])
@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"watermark": {"enabled": False}}, "opted_out"),
        ({"temperature": 0}, "greedy"),
        ({"max_tokens": 4}, "too_short"),
    ],
)
def test_unmarked_answers_say_why(
    marked_app: FastAPI, path: str, fields: dict[str, object], reason: str
) -> None:
    answer = ask(marked_app, path, n=2, **fields)
    assert answer["watermark"] == report(0, reason)
    assert [choice["watermark"] for choice in answer["choices"]] == 2 * [report(0, reason)]
    last = stream(marked_app, path, **fields)[-1]
    assert last["watermark"] == last["choices"][0]["watermark"] == report(0, reason)


@pytest.mark.parametrize("path", [CHAT, TEXT])
def test_an_unmarked_server_says_so(unmarked_app: FastAPI, path: str) -> None:
    expected = report(0, "server_unmarked", key_id=None)
    assert ask(unmarked_app, path)["watermark"] == expected
    assert stream(unmarked_app, path)[-1]["watermark"] == expected


@pytest.mark.parametrize("path", [CHAT, TEXT])
def test_marked_tokens_add_up(marked_app: FastAPI, path: str) -> None:
    answer = ask(marked_app, path, n=3, max_tokens=48, ignore_eos=True)
    counts = [choice["watermark"]["marked_tokens"] for choice in answer["choices"]]
    assert all(0 < count <= 44 for count in counts)
    assert answer["watermark"] == report(sum(counts), None)
    chunks = stream(marked_app, path, n=3, max_tokens=48, ignore_eos=True)
    ended = [c["watermark"] for chunk in chunks for c in chunk["choices"] if c["finish_reason"]]
    assert len(ended) == 3
    assert chunks[-1]["watermark"] == report(sum(r["marked_tokens"] for r in ended), None)
    assert all(chunk["watermark"] is None for chunk in chunks[:-1])


def test_one_marked_choice_is_enough(marked_app: FastAPI) -> None:
    answer = ask(marked_app, TEXT, prompt=[ENDS_AT_ONCE, "Tell me"], max_tokens=48)
    empty, other = (choice["watermark"] for choice in answer["choices"])
    assert empty == report(0, "too_short")
    assert answer["watermark"] == other


def test_a_payload_is_carried_where_the_key_has_room(
    payload_app: FastAPI, marked_app: FastAPI
) -> None:
    fields = {"watermark": {"payload": 0x2A}, "ignore_eos": True, "max_tokens": 40}
    assert ask(payload_app, CHAT, **fields)["watermark"]["applied"]
    for app, payload in ((payload_app, 0), (payload_app, 2**8), (marked_app, 1)):
        response = post(app, CHAT, body_for(CHAT, watermark={"payload": payload}))
        assert response.status_code == 400
        assert response.json()["error"]["param"] == "watermark.payload"


def test_health_and_metrics(marked_app: FastAPI) -> None:
    ask(marked_app, TEXT, temperature=0)
    assert call(marked_app, "GET", "/healthz").text == "ok\n"
    assert call(marked_app, "GET", "/readyz").text == "ok\n"
    metrics = call(marked_app, "GET", "/metrics")
    assert metrics.headers["content-type"].startswith("text/plain; version=")
    assert 'tokenmark_unmarked_answers_total{reason="greedy"}' in metrics.text


def test_the_description_of_the_api(marked_app: FastAPI) -> None:
    description = call(marked_app, "GET", "/openapi.json").json()
    assert description["paths"].keys() == {
        "/v1/models",
        "/v1/models/{model_id}",
        CHAT,
        TEXT,
        "/healthz",
        "/readyz",
        "/metrics",
    }
    for operations in description["paths"].values():
        for operation in operations.values():
            assert operation["responses"].keys() == {"200", "4XX", "5XX"}
    # Pages that load scripts from elsewhere are not served.
    assert call(marked_app, "GET", "/docs").status_code == 404


def test_the_context_is_the_limit(unmarked_app: FastAPI) -> None:
    assert ask(unmarked_app, TEXT, prompt="x" * 511, max_tokens=1)["usage"]["total_tokens"] == 512
    for prompt in ("x" * 513, ["y", "x" * 513]):
        error = post(unmarked_app, TEXT, body_for(TEXT, prompt=prompt)).json()["error"]
        assert error["code"] == "context_length_exceeded"
        assert error["param"] == "prompt"
        assert "513" in error["message"]
        assert "512" in error["message"]
    full = body_for(CHAT, messages=[{"role": "user", "content": "x" * 512}])
    assert post(unmarked_app, CHAT, full).json()["error"]["param"] == "messages"
    assert post(unmarked_app, TEXT, body_for(TEXT, prompt="x" * 512)).status_code == 400


def test_a_model_without_a_chat_template() -> None:
    with tiny_engine(has_chat=False) as engine:
        response = post(create_app(engine.model), CHAT, body_for(CHAT))
    assert response.status_code == 400
    assert "/v1/completions" in response.json()["error"]["message"]


def test_a_full_queue() -> None:
    config = EngineConfig(max_model_len=64, n_blocks=4, max_running=1, max_queued=2)
    with tiny_engine(config) as engine:
        response = post(create_app(engine.model), TEXT, body_for(TEXT, n=3))
    assert response.status_code == 429
    assert response.headers["retry-after"] == "1"
    error = response.json()["error"]
    assert (error["code"], error["type"]) == ("queue_full", "rate_limit_error")
