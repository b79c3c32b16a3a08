"""The official client of OpenAI, unchanged, against a real server."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import openai
import pytest
from openai.types.chat import ChatCompletion, ChatCompletionUserMessageParam

from tests.api.live_server import TIMEOUT_S, LiveServer
from tests.tiny_engine import MODEL_NAME

HELLO: ChatCompletionUserMessageParam = {"role": "user", "content": "Hello"}


@pytest.fixture(scope="module")
def client(server: LiveServer) -> Iterator[openai.OpenAI]:
    with pytest.MonkeyPatch.context() as patch:
        # The client asks the environment for a proxy, which would not reach this machine.
        patch.setenv("NO_PROXY", "127.0.0.1")
        client = openai.OpenAI(
            base_url=f"{server.url}/v1", api_key="unused", max_retries=0, timeout=TIMEOUT_S
        )
    with client:
        yield client


def watermark_of(answer: openai.BaseModel) -> dict[str, Any]:
    assert answer.model_extra is not None
    report: dict[str, Any] = answer.model_extra["watermark"]
    return report


def test_models(client: openai.OpenAI) -> None:
    assert [model.id for model in client.models.list()] == [MODEL_NAME]
    assert client.models.retrieve(MODEL_NAME).owned_by == "tokenmark"
    with pytest.raises(openai.NotFoundError) as caught:
        client.models.retrieve("gpt-4o")
    assert caught.value.code == "model_not_found"


def test_completions(client: openai.OpenAI) -> None:
    answer = client.completions.create(
        model=MODEL_NAME, prompt="Hello", max_tokens=40, extra_body={"min_tokens": 40}
    )
    assert len(answer.choices[0].text) == 40
    assert answer.usage is not None
    assert answer.usage.completion_tokens == 40
    assert watermark_of(answer)["applied"]


def test_streamed_completions(client: openai.OpenAI) -> None:
    chunks = list(
        client.completions.create(
            model=MODEL_NAME,
            prompt="Hello",
            max_tokens=4,
            stream=True,
            extra_body={"min_tokens": 4},
        )
    )
    assert len("".join(chunk.choices[0].text for chunk in chunks)) == 4
    assert chunks[-1].choices[0].finish_reason in {"stop", "length"}
    assert watermark_of(chunks[-1])["reason"] == "too_short"


def test_chats(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(
        model=MODEL_NAME, messages=[HELLO], max_completion_tokens=40, n=2, stop=["@@@"]
    )
    assert [choice.message.role for choice in answer.choices] == ["assistant", "assistant"]
    again = [HELLO, answer.choices[0].message.model_dump(), HELLO]
    assert client.chat.completions.create(
        model=MODEL_NAME,
        messages=again,  # type: ignore[arg-type]  # a dumped message, as clients send it back
        max_tokens=4,
    ).choices


def test_streamed_chats(client: openai.OpenAI) -> None:
    stream = client.chat.completions.create(
        model=MODEL_NAME,
        messages=[HELLO],
        max_tokens=4,
        stream=True,
        stream_options={"include_usage": True},
        extra_body={"min_tokens": 4},
    )
    first, *chunks, last = stream
    assert first.choices[0].delta.role == "assistant"
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks)
    assert last.usage is not None
    assert len(text) == last.usage.completion_tokens == 4
    assert watermark_of(last)["marked_tokens"] == 0


def test_the_mark_can_be_left_out(client: openai.OpenAI) -> None:
    first, second = (
        client.chat.completions.create(
            model=MODEL_NAME,
            messages=[HELLO],
            max_tokens=40,
            seed=11,
            extra_body={"watermark": {"enabled": False}},
        )
        for _ in range(2)
    )
    assert watermark_of(first)["reason"] == "opted_out"
    assert first.choices[0].message.content == second.choices[0].message.content


def test_errors_have_their_classes(client: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError) as bad:
        client.completions.create(model=MODEL_NAME, prompt="x", temperature=9)
    assert (bad.value.code, bad.value.param) == ("invalid_request", "temperature")
    with pytest.raises(openai.BadRequestError) as too_long:
        client.completions.create(model=MODEL_NAME, prompt="x" * 600)
    assert too_long.value.code == "context_length_exceeded"
    with pytest.raises(openai.NotFoundError):
        client.completions.create(model="gpt-4o", prompt="x")
    with pytest.raises(openai.InternalServerError):
        client.completions.create(model=MODEL_NAME, prompt="\x00", stream=True)


def test_requests_side_by_side(client: openai.OpenAI) -> None:
    kinds: list[dict[str, Any]] = [
        {"temperature": 0},
        {"extra_body": {"watermark": {"enabled": False}}, "seed": 3},
        {"extra_body": {"min_tokens": 32}},
    ]

    def ask(number: int) -> ChatCompletion:
        answer: ChatCompletion = client.chat.completions.create(
            model=MODEL_NAME, messages=[HELLO], max_tokens=32, **kinds[number % 3]
        )
        return answer

    alone = [ask(number) for number in range(3)]
    with ThreadPoolExecutor(16) as pool:
        answers = list(pool.map(ask, range(16)))
    for number, answer in enumerate(answers):
        expected = ("greedy", "opted_out", None)[number % 3]
        assert watermark_of(answer)["reason"] == expected
        if expected is not None:
            assert answer.choices[0].message.content == alone[number % 3].choices[0].message.content
    marked = {answer.choices[0].message.content for answer in answers[2::3]}
    assert len(marked) == len(answers[2::3])
