import inspect

import openai
import pytest

from tokenmark.api import compatibility
from tokenmark.api.compatibility import Compatibility
from tokenmark.api.schemas import (
    ChatRequest,
    CompletionRequest,
    GenerationRequest,
    Message,
    StreamOptions,
)
from tokenmark.watermark.errors import RequestError

TABLES = [
    (CompletionRequest, compatibility.COMPLETIONS),
    (ChatRequest, compatibility.CHAT),
    (Message, compatibility.MESSAGE),
    (StreamOptions, compatibility.STREAM_OPTIONS),
]
NEUTRAL = [
    (table, name, value)
    for _, table in TABLES
    for name, rule in table.neutral.items()
    for value in (None, *rule.values)
]


def test_every_field_of_the_official_client_is_known() -> None:
    of_transport = {"self", "extra_headers", "extra_query", "extra_body", "timeout"}
    kinds: list[tuple[object, type[GenerationRequest]]] = [
        (openai.resources.Completions.create, CompletionRequest),
        (openai.resources.chat.Completions.create, ChatRequest),
    ]
    for create, request in kinds:
        assert callable(create)
        offered = inspect.signature(create).parameters.keys() - of_transport
        table = request.compatibility
        known = request.model_fields.keys() | table.neutral.keys() | table.without_effect.keys()
        assert offered <= known


@pytest.mark.parametrize(("model", "table"), TABLES)
def test_no_field_is_in_two_places(model: type[GenerationRequest], table: Compatibility) -> None:
    assert not model.model_fields.keys() & (table.neutral.keys() | table.without_effect.keys())
    assert not table.neutral.keys() & table.without_effect.keys()


@pytest.mark.parametrize(("table", "name", "value"), NEUTRAL)
def test_neutral_values_are_left_out(table: Compatibility, name: str, value: object) -> None:
    assert table.strip({name: value, "kept": 1}) == {"kept": 1}


@pytest.mark.parametrize("table", [table for _, table in TABLES])
def test_other_values_are_refused_by_name(table: Compatibility) -> None:
    for name, rule in table.neutral.items():
        with pytest.raises(RequestError, match=f"^{name}: {rule.feature} not supported") as caught:
            table.strip({name: "anything else"})
        assert caught.value.param == name


@pytest.mark.parametrize("table", [table for _, table in TABLES])
def test_fields_without_effect_may_hold_anything(table: Compatibility) -> None:
    for name in table.without_effect:
        assert table.strip({name: {"any": ["thing"]}}) == {}
