"""A model's formats, by its chat template, its special tokens, or by name."""

from __future__ import annotations

import pytest
from agentserve.engine.replies.reasoning import detect_reasoning
from agentserve.engine.tool_formats.formats import FORMATS, by_name, detect

# The lines of well-known templates that show a call.
TEMPLATES = {
    "hermes": """{{- '\\n<tool_call>\\n{"name": "' ~ call.name ~ '", "arguments": ' ~ (call.arguments | tojson) ~ '}' }}""",
    "qwen3_coder": "{{- '<tool_call>\\n<function=' + call.name + '>\\n<parameter=' + key + '>\\n' }}",
    "glm": "{{ '\\n<tool_call>' + call.name }}\n<arg_key>{{ k }}</arg_key>\n<arg_value>{{ v }}</arg_value>",
    "llama3": """{{- 'Respond in the format {"name": function name, "parameters": dictionary of argument name' }}""",
    "mistral": """{{- '[TOOL_CALLS]' + call.name + '[ARGS]' + (call.arguments | tojson) }}""",
    "deepseek": "{{ '<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>' + call.name + '<｜tool▁sep｜>' }}",
    "gemma4": """{{- '<|tool_call>call:' + call.name + '{' }}{{- '<|channel>thought\\n<channel|>' -}}""",
    "function_gemma": "{{- '<start_function_call>call:' + call.name + '{' -}}",
    "harmony": "{{- '<|start|>assistant<|channel|>commentary to=functions.' ~ call.name ~ '<|message|>' }}",
    "tool_code": "Write each call in a block:\n```tool_code\ncall()\n```",
}


@pytest.mark.parametrize("name", TEMPLATES)
def test_a_template_shows_its_format(name: str) -> None:
    found = detect(TEMPLATES[name])
    assert found is not None
    assert found.name == name


def test_the_table_above_is_complete() -> None:
    assert set(TEMPLATES) == {form.name for form in FORMATS}


def test_a_template_without_calls_has_no_format() -> None:
    assert (
        detect("{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>{% endfor %}")
        is None
    )


def test_special_tokens_decide_when_the_template_says_nothing() -> None:
    found = detect("{{ messages }}", ["<s>", "[TOOL_CALLS]", "[ARGS]"])
    assert found is not None
    assert found.name == "mistral"


def test_the_template_goes_before_the_special_tokens() -> None:
    found = detect(TEMPLATES["hermes"], ["<|python_tag|>"])
    assert found is not None
    assert found.name == "hermes"


def test_a_format_is_chosen_by_name() -> None:
    assert all(by_name(form.name) is form for form in FORMATS)


def test_an_unknown_name_is_refused_with_those_that_there_are() -> None:
    with pytest.raises(
        ValueError, match=r"no tool format is called 'hermess'; there are harmony, deepseek, .*hermes"
    ):
        by_name("hermess")


@pytest.mark.parametrize(
    ("template", "name"),
    [
        ("{{ '<think>\\n' + m.reasoning_content + '\\n</think>\\n\\n' }}", "think"),
        ("{{ '[THINK]' + m.thinking + '[/THINK]' }}", "mistral"),
        (TEMPLATES["gemma4"], "gemma4"),
        ("{{ '<seed:think>' }}{{ '</seed:think>' }}", "seed"),
        (TEMPLATES["harmony"], None),
        (TEMPLATES["hermes"], None),
    ],
)
def test_a_template_shows_how_a_model_thinks(template: str, name: str | None) -> None:
    found = detect_reasoning(template)
    assert (found.name if found else None) == name
