import pytest

from tokenmark.engine.chat import ChatTemplate
from tokenmark.watermark.errors import ModelError, RequestError

MESSAGES = [{"role": "user", "content": "{{ 7 * 7 }} <b>"}]


def render(source: str) -> str:
    return ChatTemplate(source, special_tokens={"bos_token": "<s>"}).render(MESSAGES)


def test_content_is_data_and_never_template() -> None:
    source = "{{ bos_token }}{% for m in messages %}{{ m.role }}: {{ m['content'] }}{% endfor %}"
    assert render(source) == "<s>user: {{ 7 * 7 }} <b>"


def test_the_prompt_asks_for_the_next_message() -> None:
    assert render("{% if add_generation_prompt %}go{% endif %}") == "go"


def test_a_template_may_refuse() -> None:
    with pytest.raises(RequestError, match="roles must alternate") as caught:
        render("{{ raise_exception('roles must alternate') }}")
    assert caught.value.param == "messages"


@pytest.mark.parametrize("source", ["{% for %}", "{{ unclosed"])
def test_a_template_that_does_not_compile_is_named(source: str) -> None:
    with pytest.raises(ModelError, match="does not compile"):
        ChatTemplate(source, special_tokens={})


@pytest.mark.parametrize(
    "source",
    [
        "{{ ''.__class__.__mro__[1].__subclasses__() }}",
        "{{ messages.append(1) }}",
        "{{ messages[0].update({'role': 'system'}) }}",
    ],
)
def test_a_template_cannot_reach_out_of_its_sandbox(source: str) -> None:
    with pytest.raises(RequestError, match="refuses these messages"):
        render(source)
