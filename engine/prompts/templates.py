"""Messages and tools → the prompt text, by the Jinja template that a model brings.

The environment is the one that transformers renders chat templates in (`utils/chat_template_utils.py`), so that
templates written for it give the same text; a test compares the two. A template is foreign code: it runs in
Jinja's immutable sandbox, for a limited time, and without large products. Its memory is limited in no other way.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from contextvars import ContextVar
from datetime import datetime
from typing import Any

import jinja2
from jinja2 import nodes
from jinja2.exceptions import SecurityError
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace

from ..gguf.source import GgufModel
from ..model_errors import unsupported
from ..protocol import Message
from ..text.tokenise import Tokenizer, clean_text
from .call_ids import wants_short_ids, with_short_ids

TIME_LIMIT_S = 10.0
PRODUCT_LIMIT = 1 << 20  # characters, items or bits that one multiplication or power may make

# The usual format of models that have the two tokens it needs; it is the one that llama.cpp falls back to.
CHATML = (
    "{% for message in messages %}{{ '<|im_start|>' + message.role + '\n' + message.content + '<|im_end|>\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
_OWN_NAMES = ("messages", "tools")
_deadline: ContextVar[float] = ContextVar("template_deadline", default=float("inf"))


class TemplateError(Exception):
    """The template can't be used for these messages; the message is one line, often the template's own."""

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.message = message


class TemplateRefusal(TemplateError):
    """The template itself says that it does not take these messages."""


class OptionError(TemplateError):
    """The template options can't be used."""


class _Raised(jinja2.TemplateError):
    """What `raise_exception` raises in a template."""


class ChatTemplate:
    """A compiled template. Rendering has no side effects, so any thread may do it."""

    def __init__(self, source: str, special_tokens: Mapping[str, str]) -> None:
        """`special_tokens` are texts by the names that templates use, such as `bos_token`.

        Raises TemplateError when the source is no Jinja template.
        """
        self.source = source
        self._special_tokens = dict(special_tokens)
        self._short_ids = wants_short_ids(source)
        try:
            self._template = _ENVIRONMENT.from_string(source)
        except (jinja2.TemplateError, RecursionError) as error:
            raise TemplateError(f"the model's chat template can't be read: {_one_line(error)}") from error

    def render(
        self,
        messages: Sequence[Message],
        tools_json: str | None = None,
        options_json: str = "{}",
        add_generation_prompt: bool = True,
    ) -> str:
        """The prompt. `tools_json` is a JSON list, `options_json` an object of further template variables.

        UTF-8 can't hold lone surrogates, so they become question marks. Raises TemplateError: for JSON of another
        shape (OptionError where it is that of the options), for what the template itself refuses, and when it does
        something that is not allowed or takes longer than TIME_LIMIT_S.
        """
        variables = {
            "tools": None if tools_json is None else _parsed(tools_json, list, "tools"),
            "documents": None,
            "add_generation_prompt": add_generation_prompt,
            **self._special_tokens,
            **_options(options_json),
            "messages": [message_dict(message) for message in self._fitting(messages)],
        }
        token = _deadline.set(time.monotonic() + TIME_LIMIT_S)
        try:
            return clean_text(self._template.render(variables))
        except _Raised as error:
            raise TemplateRefusal(f"the chat template refused the messages: {_one_line(error)}") from error
        except (
            jinja2.TemplateError,
            ArithmeticError,
            LookupError,
            TypeError,
            ValueError,
            AttributeError,
        ) as error:
            raise TemplateError(f"the chat template refused the messages: {_one_line(error)}") from error
        except (RecursionError, MemoryError) as error:
            raise TemplateError("the chat template needs too much memory") from error
        finally:
            _deadline.reset(token)

    def _fitting(self, messages: Sequence[Message]) -> Sequence[Message]:
        return with_short_ids(messages) if self._short_ids else messages


def read_template(source: GgufModel, tokenizer: Tokenizer) -> ChatTemplate | None:
    """The template of an opened file. A file without one gets ChatML when its vocabulary has ChatML's tokens, and
    None otherwise: guessing a format gives poor answers without any error.

    Raises ModelFileError when the file's template can't be read.
    """
    text = source.chat_template
    if text is None:
        has_chatml = None not in (tokenizer.id_of("<|im_start|>"), tokenizer.id_of("<|im_end|>"))
        return ChatTemplate(CHATML, tokenizer.special_tokens) if has_chatml else None
    try:
        return ChatTemplate(text, tokenizer.special_tokens)
    except TemplateError as error:
        raise unsupported(error.message) from error


def message_dict(message: Message) -> dict[str, Any]:
    """The message as templates expect it: no None, and arguments of tool calls as objects where they are JSON."""
    result: dict[str, Any] = {"role": message.role, "content": message.content or ""}
    if message.reasoning is not None:
        # transformers fills both names; templates read one or the other.
        result |= {"reasoning_content": message.reasoning, "thinking": message.reasoning}
    if message.tool_calls:
        result["tool_calls"] = [
            {
                "type": "function",
                "id": call.id,
                "function": {"name": call.name, "arguments": _object_or_text(call.arguments)},
            }
            for call in message.tool_calls
        ]
    optional = {"tool_call_id": message.tool_call_id, "name": message.name}
    return result | {key: value for key, value in optional.items() if value is not None}


def _object_or_text(arguments: str) -> Any:
    try:
        return json.loads(arguments)
    except (ValueError, RecursionError):
        return arguments


def _options(text: str) -> Any:
    options = _parsed(text, dict, "template options", OptionError)
    for name in _OWN_NAMES:
        if name in options:
            raise OptionError(f"{name} can't be given as a template option")
    return options


def _parsed(text: str, kind: type[Any], what: str, wrong: type[TemplateError] = TemplateError) -> Any:
    try:
        value = json.loads(text)
    except ValueError as error:
        raise wrong(f"{what} are not JSON: {_one_line(error)}") from error
    except RecursionError as error:
        raise wrong(f"{what} are nested too deeply") from error
    if not isinstance(value, kind):
        raise wrong(f"{what} should be a JSON {'list' if kind is list else 'object'}")
    return value


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split()) or type(error).__name__


class _Environment(ImmutableSandboxedEnvironment):
    """The sandbox with a clock: the body of every loop and macro first looks at the time."""

    intercepted_binops = frozenset({"*", "**"})

    def _parse(self, source: str, name: str | None, filename: str | None) -> nodes.Template:
        tree = super()._parse(source, name, filename)
        repeated: list[nodes.For | nodes.Macro] = [*tree.find_all(nodes.For), *tree.find_all(nodes.Macro)]
        for node in repeated:
            tick = nodes.Call(nodes.EnvironmentAttribute("tick"), [], [], None, None)
            node.body.insert(0, nodes.ExprStmt(tick, lineno=node.lineno))
        tree.set_environment(self)
        return tree

    def tick(self) -> None:
        if time.monotonic() > _deadline.get():
            raise SecurityError(f"it ran for more than {TIME_LIMIT_S:g} s")

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        if _product_size(operator, left, right) > PRODUCT_LIMIT:
            raise SecurityError("it makes a text, list or number that is too large")
        return super().call_binop(context, operator, left, right)


def _product_size(operator: str, left: Any, right: Any) -> int:
    """Characters, items or bits of `left operator right`, as far as they grow with a factor."""
    if isinstance(left, int) and isinstance(right, int):
        bits = left.bit_length()
        return bits * max(right, 0) if operator == "**" else bits + right.bit_length()
    sequence, times = (left, right) if isinstance(right, int) else (right, left)
    if isinstance(sequence, str | list | tuple) and isinstance(times, int):
        return len(sequence) * max(times, 0)
    return 0


class _GenerationTag(Extension):
    """`{% generation %}…{% endgeneration %}` marks the model's own text for training; here it is just its body."""

    tags = {"generation"}  # noqa: RUF012 (Jinja declares it as a set)

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class _PlainNamespace(Namespace):
    """`namespace()` without names that begin with an underscore, as in transformers."""

    def __init__(*args: Any, **kwargs: Any) -> None:
        self, args = args[0], args[1:]
        values = dict(*args, **kwargs)
        for name in values:
            _require_plain(name)
        Namespace.__init__(self, values)

    def __setitem__(self, name: str, value: Any) -> None:
        _require_plain(name)
        super().__setitem__(name, value)


def _require_plain(name: object) -> None:
    if isinstance(name, str) and name.startswith("_"):
        raise SecurityError(f"it stores {name} on a namespace")


def _raise_exception(message: str) -> None:
    raise _Raised(message)


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | str | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    return json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )


def _strftime_now(format: str) -> str:
    return datetime.now().strftime(format)


def _environment() -> _Environment:
    environment = _Environment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_GenerationTag, loopcontrols]
    )
    environment.filters["tojson"] = _to_json
    environment.globals |= {
        "raise_exception": _raise_exception,
        "strftime_now": _strftime_now,
        "namespace": _PlainNamespace,
    }
    return environment


_ENVIRONMENT = _environment()
