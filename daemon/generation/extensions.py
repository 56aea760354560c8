"""The fields that agentserve adds to the requests of every dialect, checked the same way in each.

A field may have an older spelling beside it; the first that is given counts, and null is not given.
"""

from __future__ import annotations

import re
from typing import Any, TypeVar

from ...engine.protocol import PrefixPin
from ..errors import InvalidRequest

T = TypeVar("T")
SESSION_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.:@-]{0,127}")
"""What a session's id must match as a whole."""
PrefixWish = bool | int
"""What `agentserve_pin_prefix` may be if it is given."""
PIN_PREFIX = "agentserve_pin_prefix"
SESSION_ID = "agentserve_session_id"
# Fields that name the namespace of a request, the first that is given; `prompt_cache_key` can be one too.
SALTS = ("cache_salt", "agentserve_cache_salt")


def first_given(*spellings: T | None) -> T | None:
    """The first value that is not None."""
    return next((value for value in spellings if value is not None), None)


def session_id(given: str | None, param: str = SESSION_ID) -> str | None:
    """A session's id, None for an empty one. Raises InvalidRequest: it has to be fit for a path."""
    if not given:
        return None
    if SESSION_NAME.fullmatch(given) is None:
        rule = "1 to 128 letters, digits and _ . : @ -, beginning with a letter or digit"
        raise InvalidRequest(f"{param} must be {rule}", param=param, code="invalid_session_id")
    return given


def prefix_pin(wish: Any, best_effort: bool | None) -> PrefixPin | None:
    """What `agentserve_pin_prefix` asks for: so many tokens, for true the whole prompt, for false, null and 0 nothing.

    Raises InvalidRequest for other types and negative numbers.
    """
    if wish is None or wish is False:
        return None
    if wish is True:
        return PrefixPin(None, bool(best_effort))
    if not isinstance(wish, PrefixWish):
        message = f"{PIN_PREFIX}: expected a number of tokens or a boolean, got {_kind(wish)}"
        raise InvalidRequest(message, param=PIN_PREFIX, code="invalid_type")
    if wish < 0:
        raise InvalidRequest(
            f"{PIN_PREFIX} must be at least 0, got {wish}", param=PIN_PREFIX, code="invalid_value"
        )
    return PrefixPin(wish, bool(best_effort)) if wish else None


def _kind(value: Any) -> str:
    kinds = {float: "a number with a fraction", str: "a string", list: "an array", dict: "an object"}
    return kinds[type(value)]
