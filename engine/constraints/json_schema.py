"""How JSON is to be written: llguidance's options, bounds that schemas leave open, and nothing that demands nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .idle_keywords import demanding

if TYPE_CHECKING:
    from llguidance._lib import JsonCompileOptions

JSON_OPTIONS: JsonCompileOptions = {
    # On one line, as OpenAI's structured outputs are. Free white space costs tokens, and small models never end it.
    "whitespace_flexible": False,
    "item_separator": ",[ ]?",
    "key_separator": ":[ ]?",
    # It would drop unknown keywords in silence; a schema may ask for that itself, as `x-guidance`.
    "lenient": False,
}
# Characters of formats whose fractions of a second are endless otherwise: nanoseconds and an offset.
_LONGEST = {"time": 24, "date-time": 35}
# Numbers within limits are written without an exponent, so their decimals would be endless too.
_STEP, _STEP_DECIMALS = 1e-9, 9
_LIMITS = frozenset({"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"})
_DATA = frozenset({"const", "enum", "default", "examples"})
# Keywords that give schemas names.
_NAMED = frozenset({"properties", "patternProperties", "dependentSchemas", "$defs", "definitions"})


def bounded(schema: Any) -> Any:
    """The schema without keywords that demand nothing, and with limits where a model could go on for ever with what
    adds nothing."""
    match schema:
        case dict():
            inner = {key: _inner(key, part) for key, part in demanding(schema).items()}
            return _bound(inner) | inner
        case list():
            return [bounded(part) for part in schema]
        case _:
            return schema


def _inner(key: str, part: Any) -> Any:
    """The value of a keyword."""
    if key in _DATA:
        return part
    if key in _NAMED and isinstance(part, dict):
        # A property may be called like a keyword.
        return {name: bounded(one) for name, one in part.items()}
    return bounded(part)


def _bound(schema: dict[str, Any]) -> dict[str, float]:
    """Keywords that hold unless the schema has them itself."""
    form = schema.get("format")
    if isinstance(form, str) and form in _LONGEST and "minLength" not in schema:
        return {"maxLength": _LONGEST[form]}
    limits = [value for key, value in schema.items() if key in _LIMITS]
    is_number = schema.get("type") in ("number", ["number", "null"]) and _DATA.isdisjoint(schema)
    return {"multipleOf": _STEP} if is_number and limits and all(map(_is_coarse, limits)) else {}


def _is_coarse(limit: Any) -> bool:
    """Whether there are many steps between this limit and any other one like it."""
    return isinstance(limit, int | float) and round(limit, _STEP_DECIMALS - 3) == limit
