"""Names of models: `base` or `base:tag`, safe as file names on every platform. Pure functions."""

from __future__ import annotations

import re
from typing import NamedTuple

from ..errors import StoreError

DEFAULT_TAG = "latest"
_PART = re.compile(r"[a-z0-9][a-z0-9_.-]{0,127}")


class ModelName(NamedTuple):
    """A checked name in lower case. A part starts with a letter or digit, so `..` can't be one."""

    base: str
    tag: str

    def __str__(self) -> str:
        return f"{self.base}:{self.tag}"


def parse_name(text: str) -> ModelName:
    """Splits `base[:tag]`; the tag is `latest` when none is given. Raises StoreError for anything unsafe."""
    base, colon, tag = text.lower().partition(":")
    name = ModelName(base, tag if colon else DEFAULT_TAG)
    if not all(_PART.fullmatch(part) for part in name):
        raise StoreError(
            f"{text!r} is no model name: use letters, digits, '.', '_' and '-', "
            "starting with a letter or digit, with at most one ':' before a tag"
        )
    return name


def name_from_file(stem: str) -> str:
    """A valid base name made from a file's name, for instance `My Model.Q4_K` → `my-model.q4_k`."""
    cleaned = re.sub(r"[^a-z0-9_.-]+", "-", stem.lower()).strip("-._")
    return cleaned[:128] or "model"
