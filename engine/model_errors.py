"""The one exception for a model file that can't be served, whoever finds the reason."""

from __future__ import annotations

from typing import Literal

ModelFileCode = Literal["corrupt_model", "unsupported_model"]
MAX_MESSAGE = 300


class ModelFileError(Exception):
    """A model file is broken (`corrupt_model`) or well-formed but beyond us (`unsupported_model`).

    `message` is one line, fit for a person, and names no path. It may quote the file, so what can't be printed is
    replaced, and it is cut at MAX_MESSAGE characters.
    """

    def __init__(self, code: ModelFileCode, message: str) -> None:
        clean = "".join(character if character.isprintable() else "?" for character in message[:MAX_MESSAGE])
        super().__init__(clean)
        self.code = code
        self.message = clean


def corrupt(message: str) -> ModelFileError:
    """The file breaks its own format."""
    return ModelFileError("corrupt_model", message)


def unsupported(message: str) -> ModelFileError:
    """The file is sound, but this engine can't serve it; the message names what is missing."""
    return ModelFileError("unsupported_model", message)


class LoadError(Exception):
    """A sound model file can't be loaded here and now.

    `code` is `unsupported_device`, `out_of_memory`, `invalid_draft_model` or `load_failed`; `message` is one line and
    names no path.
    """

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
