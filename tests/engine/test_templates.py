"""Chat templates: the same text as transformers, and no way out of the sandbox."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from agentserve.engine.gguf.source import open_gguf
from agentserve.engine.model_errors import ModelFileError
from agentserve.engine.prompts import templates
from agentserve.engine.prompts.templates import ChatTemplate, TemplateError, read_template
from agentserve.engine.protocol import Message, ToolCall
from agentserve.engine.text.tokenise import read_tokenizer
from tiny_models import CHATML, write_tiny_gguf

TOOL = {
    "type": "function",
    "function": {
        "name": "read_file",
        "description": 'Liest "eine" Datei & <zeigt> sie',
        "parameters": {"type": "object", "properties": {"path": {"type": "string"}}, "required": ["path"]},
    },
}
PLAIN = (Message("system", "Be brief."), Message("user", "Grüße, <b>&amp;</b> 日本\n\n"))
CALLING = (
    Message("user", "What is in it?"),
    Message(
        "assistant",
        None,
        (ToolCall("call_1", "read_file", '{"path": "notes/ä b", "deep": {"n": [1, null]}}'),),
    ),
    Message("tool", '{"text": "hello"}', tool_call_id="call_1", name="read_file"),
    Message("assistant", "It says hello.", reasoning="Easy."),
    Message("user", "Thanks"),
)
AGENTIC = """
{%- macro signature(tool) %}
{{ tool.function.name }}({{ tool.function.parameters.properties | list | join(', ') }})
{%- endmacro %}
{{- bos_token }}
{%- set state = namespace(last='none', turns=0) %}
{%- if tools %}
<tools>
    {%- for tool in tools %}
{{ tool | tojson }}
{{ signature(tool) }}
    {%- endfor %}
</tools>
{{ tools | tojson(indent=2) }}
{%- endif %}
{% for message in messages %}
    {% if message.role == 'system' %}
        {% continue %}
    {% endif %}
    {% set state.last = message.role %}
    {% set state.turns = state.turns + loop.index0 * 2 %}
<{{ message.role }}>{{ message.content | trim }}
    {% if message.tool_calls %}
        {% for call in message.tool_calls %}
call {{ call.id }} {{ call.function.name }} {{ call.function.arguments | tojson }}
            {% for key, value in call.function.arguments.items() %}{{ key }}={{ value }} {% endfor %}
        {% endfor %}
    {% endif %}
    {% if message.reasoning_content is defined %}
<think>{{ message.reasoning_content }}</think>
    {% endif %}
    {% if message.role == 'assistant' %}{% generation %}{{ message.content }}{{ eos_token }}{% endgeneration %}{% endif %}
{% endfor %}
{{ state.last }} {{ state.turns }} {{ messages[::-1] | length }} {{ 'x' * 3 }} {{ 2 ** 5 }} {{ missing }}
{% if enable_thinking is defined and enable_thinking is false %}no thinking{% endif %}
{{ strftime_now('%Y') | length }} {{ dict(a=1) | tojson }}
{% if add_generation_prompt %}<assistant>{% endif %}
"""


def rendered(source: str, *messages: Message, **options: Any) -> str:
    return ChatTemplate(source, {"bos_token": "<s>"}).render(messages or PLAIN, **options)


def test_chatml_is_rendered_with_an_open_turn_for_the_model() -> None:
    assert (
        rendered(CHATML, Message("user", "hi")) == "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"
    )
    assert (
        rendered(CHATML, Message("user", "hi"), add_generation_prompt=False)
        == "<|im_start|>user\nhi<|im_end|>\n"
    )


def test_messages_have_no_none_and_calls_have_objects_as_arguments() -> None:
    assert json.loads(rendered("{{ messages | tojson }}", *CALLING)) == [
        {"role": "user", "content": "What is in it?"},
        {
            "role": "assistant",
            "content": "",
            "tool_calls": [
                {
                    "type": "function",
                    "id": "call_1",
                    "function": {
                        "name": "read_file",
                        "arguments": {"path": "notes/ä b", "deep": {"n": [1, None]}},
                    },
                }
            ],
        },
        {"role": "tool", "content": '{"text": "hello"}', "tool_call_id": "call_1", "name": "read_file"},
        {"role": "assistant", "content": "It says hello.", "reasoning_content": "Easy.", "thinking": "Easy."},
        {"role": "user", "content": "Thanks"},
    ]


def test_arguments_that_are_not_json_stay_text() -> None:
    call = Message("assistant", None, (ToolCall("1", "f", "{broken"),))
    assert rendered("{{ messages[0].tool_calls[0].function.arguments }}", call) == "{broken"


@pytest.mark.parametrize("level", ["[]", '{"a":}'], ids=["lists", "objects"])
def test_arguments_that_are_nested_too_deeply_stay_text(level: str) -> None:
    """Where a reader just takes them, a template that writes them may fail, but as any template does."""
    opening, closing = level[:-1], level[-1]
    for depth in (*range(900, 1000), 5_000, 100_000):
        deep = opening * depth + "1" + closing * depth
        call = Message("assistant", None, (ToolCall("1", "f", deep),))
        try:
            written = rendered("{{ messages[0].tool_calls[0].function.arguments | tojson }}", call)
        except TemplateError:
            assert depth < 1000
            continue
        assert written == json.dumps(deep) or (depth < 1000 and written.replace(" ", "") == deep)


def test_half_a_pair_of_surrogates_is_a_question_mark() -> None:
    call = Message("assistant", "\udc00", (ToolCall("1", "f", '{"a": "x\\ud83d"}'),))
    source = "{{ messages[0].content }}{{ messages[0].tool_calls[0].function.arguments | tojson }}"
    assert rendered(source, call) == '?{"a": "x?"}'


def test_options_and_tools_reach_the_template() -> None:
    source = "{{ enable_thinking }} {{ tools[0].function.name }} {{ bos_token }}"
    assert (
        rendered(source, tools_json=json.dumps([TOOL]), options_json='{"enable_thinking": false}')
        == "False read_file <s>"
    )
    assert rendered("{{ tools is none }}") == "True"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"tools_json": "{"}, "tools are not JSON"),
        ({"tools_json": "{}"}, "tools should be a JSON list"),
        ({"tools_json": "[" * 10**5}, "tools are nested too deeply"),
        ({"options_json": '{"a":' * 10**5}, "template options are nested too deeply"),
        ({"options_json": "[]"}, "template options should be a JSON object"),
        ({"options_json": '{"messages": []}'}, "messages can't be given as a template option"),
    ],
)
def test_json_of_another_shape_is_refused(options: dict[str, str], message: str) -> None:
    with pytest.raises(TemplateError, match=message):
        rendered(CHATML, **options)


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("{{ raise_exception('roles must\n alternate') }}", "roles must alternate"),
        ("{{ messages[0].content + none }}", "can only concatenate str"),
        ("{{ missing.attribute }}", "'missing' is undefined"),
        ("{{ 1 / 0 }}", "division by zero"),
        ("{{ messages | tojson(indent=messages) }}", "can't multiply"),
        ("{{ 'a'.encode('nothing') }}", "unknown encoding"),
        ("{{ '{:d}'.format('x') }}", "format code"),
    ],
)
def test_an_error_inside_a_template_is_one_line(source: str, message: str) -> None:
    with pytest.raises(TemplateError) as caught:
        rendered(source)
    assert caught.value.message.startswith("the chat template refused the messages: ")
    assert message in caught.value.message
    assert "\n" not in caught.value.message


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("{{ messages.append(1) }}", "unsafe"),
        ("{{ ''.__class__.__mro__ }}", "unsafe"),
        ("{{ cycler.__init__.__globals__ }}", "unsafe"),
        ("{% set ns = namespace(__class__=1) %}", "stores __class__ on a namespace"),
        ("{% set ns = namespace() %}{% set ns._x = 1 %}", "stores _x on a namespace"),
        ("{% for i in range(10 ** 7) %}{% endfor %}", "Range too big"),
        ("{{ 'a' * 10 ** 9 }}", "too large"),
        ("{{ 10 ** 9 * [1] }}", "too large"),
        ("{{ 9 ** (10 ** 7) }}", "too large"),
        ("{{ (((9 ** 64) ** 64) ** 64) ** 64 }}", "too large"),
        ("{% macro f(n) %}{{ f(n) }}{% endmacro %}{{ f(0) }}", "too much memory"),
    ],
)
def test_the_sandbox_refuses(source: str, message: str) -> None:
    with pytest.raises(TemplateError, match=message):
        rendered(source)


@pytest.mark.parametrize(
    "source",
    [
        "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
        "{% macro f(n) %}{% if n %}{{ f(n - 1) }}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(60) }}",
    ],
)
def test_a_template_that_does_not_end_is_stopped(monkeypatch: pytest.MonkeyPatch, source: str) -> None:
    monkeypatch.setattr(templates, "TIME_LIMIT_S", 0.05)
    with pytest.raises(TemplateError, match=r"ran for more than 0\.05 s"):
        rendered(source)


def test_rendering_changes_nothing_for_the_next_conversation() -> None:
    template = ChatTemplate(
        "{% set ns = namespace(n=0) %}{% for m in messages %}{% set ns.n = ns.n + 1 %}{% endfor %}{{ ns.n }}",
        {},
    )
    assert [template.render(PLAIN), template.render(CALLING), template.render(PLAIN)] == ["2", "5", "2"]


def test_a_file_without_a_template_gets_chatml_only_when_it_has_chatmls_tokens(tmp_path: Path) -> None:
    bytes_only = open_gguf(write_tiny_gguf(tmp_path / "a.gguf", chat_template=None).path)
    template = read_template(bytes_only, read_tokenizer(bytes_only))
    assert template is not None
    assert template.render([Message("user", "hi")]) == rendered(CHATML, Message("user", "hi"))
    pieces = open_gguf(write_tiny_gguf(tmp_path / "b.gguf", tokenizer="llama", chat_template=None).path)
    assert read_template(pieces, read_tokenizer(pieces)) is None


def test_a_template_knows_the_texts_of_special_tokens(tmp_path: Path) -> None:
    source = "{{ bos_token }} {{ eos_token }} {{ pad_token }}"
    model = open_gguf(write_tiny_gguf(tmp_path / "a.gguf", chat_template=source).path)
    template = read_template(model, read_tokenizer(model))
    assert template is not None
    assert template.render(PLAIN) == "<|im_start|> <|im_end|> <|endoftext|>"


def test_a_file_whose_template_can_not_be_read_is_refused(tmp_path: Path) -> None:
    model = open_gguf(write_tiny_gguf(tmp_path / "a.gguf", chat_template="{% if %}").path)
    with pytest.raises(
        ModelFileError, match="the model's chat template can't be read: Expected an expression"
    ) as caught:
        read_template(model, read_tokenizer(model))
    assert caught.value.code == "unsupported_model"


# ---- against transformers


def rendered_by_transformers(
    source: str, messages: tuple[Message, ...], tools: list[Any] | None, **options: Any
) -> str:
    pytest.importorskip("transformers")
    from transformers.utils.chat_template_utils import render_jinja_template

    plain = [templates.message_dict(message) for message in messages]
    (text,), _ = render_jinja_template(
        [plain],
        tools=tools,
        chat_template=source,
        add_generation_prompt=True,
        bos_token="<s>",
        eos_token="</s>",
        **options,
    )
    return str(text)


@pytest.mark.torch
@pytest.mark.parametrize("messages", [PLAIN, CALLING], ids=["plain", "calling"])
@pytest.mark.parametrize("tools", [None, [TOOL]], ids=["without tools", "with tools"])
@pytest.mark.parametrize("source", [CHATML, AGENTIC], ids=["chatml", "agentic"])
def test_templates_give_the_text_that_transformers_gives(
    source: str, messages: tuple[Message, ...], tools: list[Any] | None
) -> None:
    ours = ChatTemplate(source, {"bos_token": "<s>", "eos_token": "</s>"}).render(
        messages, None if tools is None else json.dumps(tools), '{"enable_thinking": false}'
    )
    assert ours == rendered_by_transformers(source, messages, tools, enable_thinking=False)


@pytest.mark.torch
@pytest.mark.model
def test_smollm2s_own_template_gives_the_text_that_transformers_gives(smollm2: Path) -> None:
    model = open_gguf(smollm2)
    template = read_template(model, read_tokenizer(model))
    assert template is not None
    assert model.chat_template is not None
    for messages in (PLAIN, PLAIN[1:], CALLING):
        assert template.render(messages) == rendered_by_transformers(model.chat_template, messages, None)
