"""What a chat request hands to the model's template: whether it should think, for how long, and what it likes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..http.json_body import json_text

_NO_EFFORT = "none"
_SWITCH = {"enabled": True, "disabled": False}


def template_options(
    given: Mapping[str, Any] | None,
    *,
    enable_thinking: bool | None = None,
    thinking: Any = None,
    effort: str | None = None,
    parallel_tool_calls: bool | None = None,
) -> str:
    """The variables of the template, as a JSON object.

    A field of the request outweighs the same name in `given` (`chat_template_kwargs`). Where neither says whether to
    think, `{"type": "enabled"}` or `disabled` in `thinking` does, and the effort `none`, which is not to; what another
    effort means is the template's affair. Raises InvalidRequest for options that are nested too deeply.
    """
    fields = {
        "enable_thinking": enable_thinking,
        "reasoning_effort": effort,
        "parallel_tool_calls": parallel_tool_calls,
    }
    options = dict(given or {}) | {name: value for name, value in fields.items() if value is not None}
    kind = thinking.get("type") if isinstance(thinking, Mapping) else None
    if kind in _SWITCH:
        options.setdefault("enable_thinking", _SWITCH[kind])
    if effort == _NO_EFFORT:
        options.setdefault("enable_thinking", False)
    return json_text(options)


def effort_of(effort: str | None, reasoning: Any) -> str | None:
    """`reasoning_effort`, or the effort in a `reasoning` object, which is how other routes and some clients say it."""
    nested = reasoning.get("effort") if isinstance(reasoning, Mapping) else None
    return effort or (nested if isinstance(nested, str) else None)
