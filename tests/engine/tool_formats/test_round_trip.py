"""What a chat template writes for a call in the history, the parser of its format reads as the same call.

The templates are short ones of our own that write calls as those of well-known models do.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from agentserve.engine.prompts.templates import ChatTemplate
from agentserve.engine.protocol import Message, ToolCall
from agentserve.engine.tool_formats.formats import detect
from hypothesis import given, settings
from hypothesis import strategies as st

NAMED = """'{"name": "' ~ c.function.name ~ '", "arguments": ' ~ (c.function.arguments | tojson) ~ '}'"""
GEMMA_VALUE = (
    "{% macro value(v) %}{% if v is string %}{{ '<|\"|>' ~ v ~ '<|\"|>' }}"
    "{% elif v is boolean %}{{ 'true' if v else 'false' }}"
    "{% elif v is mapping %}{{ '{' }}{% for k, x in v | dictsort %}{{ k ~ ':' ~ value(x) }}"
    "{% if not loop.last %},{% endif %}{% endfor %}{{ '}' }}"
    "{% elif v is sequence %}[{% for x in v %}{{ value(x) }}{% if not loop.last %},{% endif %}{% endfor %}]"
    "{% else %}{{ v }}{% endif %}{% endmacro %}"
)
# What stands for the calls of a message `m`.
CALLS = {
    "hermes": "{% for c in m.tool_calls %}{% if m.content or not loop.first %}{{ '\n' }}{% endif %}"
    "{{ '<tool_call>\n' ~ " + NAMED + " ~ '\n</tool_call>' }}{% endfor %}",
    "qwen3_coder": "{% for c in m.tool_calls %}{{ '\n<tool_call>\n<function=' ~ c.function.name ~ '>\n' }}"
    "{% for k, v in c.function.arguments.items() %}"
    "{{ '<parameter=' ~ k ~ '>\n' ~ (v if v is string else v | tojson) ~ '\n</parameter>\n' }}"
    "{% endfor %}{{ '</function>\n</tool_call>' }}{% endfor %}",
    "glm": "{% for c in m.tool_calls %}{{ '\n<tool_call>' ~ c.function.name ~ '\n' }}"
    "{% for k, v in c.function.arguments.items() %}"
    "{{ '<arg_key>' ~ k ~ '</arg_key>\n<arg_value>' ~ (v if v is string else v | tojson) ~ '</arg_value>\n' }}"
    "{% endfor %}{{ '</tool_call>' }}{% endfor %}",
    "llama3": "{% if false %}<|python_tag|>{% endif %}{% for c in m.tool_calls %}{{ '\n' }}"
    "{{ '{\"name\": \"' ~ c.function.name ~ '\", \"parameters\": ' ~ (c.function.arguments | tojson) ~ '}' }}"
    "{% endfor %}",
    "mistral": "{% for c in m.tool_calls %}"
    "{{ '[TOOL_CALLS]' ~ c.function.name ~ '[ARGS]' ~ (c.function.arguments | tojson) }}{% endfor %}",
    "deepseek": "{{ '<｜tool▁calls▁begin｜>' }}{% for c in m.tool_calls %}"
    "{{ '<｜tool▁call▁begin｜>' ~ c.function.name ~ '<｜tool▁sep｜>' }}"
    "{{ (c.function.arguments | tojson) ~ '<｜tool▁call▁end｜>' }}"
    "{% endfor %}{{ '<｜tool▁calls▁end｜>' }}",
    "gemma4": GEMMA_VALUE + "{% for c in m.tool_calls %}"
    "{{ '<|tool_call>call:' ~ c.function.name ~ value(c.function.arguments) ~ '<tool_call|>' }}{% endfor %}",
    "harmony": "{% for c in m.tool_calls %}"
    "{{ '<|start|>assistant<|channel|>commentary to=functions.' ~ c.function.name ~ ' <|constrain|>json' }}"
    "{{ '<|message|>' ~ (c.function.arguments | tojson) ~ '<|call|>' }}{% endfor %}",
}
# Values between tags are not escaped, so they can't hold the tags.
text = st.text(st.characters(exclude_characters="<", exclude_categories=["Cs"]), max_size=12)
inner = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | text,
    lambda values: st.lists(values, max_size=3) | st.dictionaries(st.sampled_from("abc"), values, max_size=3),
    max_leaves=8,
)
weather = st.fixed_dictionaries({}, optional={"city": text, "days": st.integers()})
file = st.fixed_dictionaries(
    {},
    optional={
        "path": text,
        "content": text,
        "lines": st.lists(inner, max_size=3) | st.none(),
        "options": st.dictionaries(st.sampled_from("abc"), inner, max_size=3),
        "force": st.booleans(),
    },
)
call = st.tuples(st.just("get_weather"), weather) | st.tuples(st.just("write_file"), file)
CONTENTS = ("", "I'll look.", "Two\n\nlines.\n")


@pytest.mark.parametrize("form", CALLS)
@settings(max_examples=40, deadline=None)
@given(content=st.sampled_from(CONTENTS), calls=st.lists(call, min_size=1, max_size=3))
def test_the_calls_of_a_template_are_read(
    form: str,
    content: str,
    calls: list[tuple[str, dict[str, Any]]],
    new_parser: Callable[[str], Any],
    read_reply: Callable[..., Any],
) -> None:
    template = "{% set m = messages[0] %}{{ m.content }}" + CALLS[form]
    made = tuple(ToolCall(str(n), name, json.dumps(given)) for n, (name, given) in enumerate(calls))
    reply = ChatTemplate(template, {}).render([Message("assistant", content, made)])
    found = read_reply(new_parser(form), [reply])
    assert [(name, json.loads(arguments)) for name, arguments in found.calls] == calls
    assert found.text.removesuffix("\n" if form == "llama3" else "") == content


@pytest.mark.parametrize("form", CALLS)
def test_the_format_of_a_template_is_found(form: str) -> None:
    found = detect(CALLS[form])
    assert found is not None
    assert found.name == form
