"""The body of OpenAI's embedding request, checked before a model is loaded."""

from __future__ import annotations

from typing import Literal, NamedTuple, NoReturn

import msgspec

from ...engine.protocol import EmbeddingInput
from ..errors import BodyTooLarge, InvalidRequest
from ..http.json_body import decode_body

MOST_INPUTS = 128
MOST_CHARACTERS = 8192
MOST_CHARACTERS_IN_ALL = 65536

Format = Literal["float", "base64"]
FORMATS: tuple[Format, ...] = ("float", "base64")


class EmbeddingsBody(msgspec.Struct):
    """The whole body; None stands for null and for absent alike."""

    input: str | list[str | int | list[int]]
    model: str | None = None
    encoding_format: str | None = None
    dimensions: int | None = None
    truncate: bool | None = None


class EmbeddingsCall(NamedTuple):
    """An embedding request that was understood. `model` None is the server's choice, `dimensions` None the model's."""

    model: str | None
    inputs: tuple[EmbeddingInput, ...]
    format: Format
    dimensions: int | None
    truncate: bool


def parse_embeddings(body: bytes) -> EmbeddingsCall:
    """Reads an embedding request. Raises InvalidRequest, which names the field at fault in `param`."""
    wish = decode_body(body, EmbeddingsBody)
    if wish.model is not None and not wish.model.strip():
        _refuse("model must not be empty", "model")
    if wish.dimensions is not None and wish.dimensions < 1:
        _refuse(f"dimensions must be at least 1, got {wish.dimensions}", "dimensions")
    inputs = _inputs(wish.input)
    _check_sizes(inputs)
    return EmbeddingsCall(
        wish.model, inputs, _format(wish.encoding_format), wish.dimensions, bool(wish.truncate)
    )


def check_dimensions(wanted: int | None, model: str, dimensions: int) -> None:
    """Raises InvalidRequest unless the model's vectors have the length that was asked for."""
    if wanted is not None and wanted != dimensions:
        _refuse(f"{model} gives {dimensions} dimensions and can't give {wanted}", "dimensions")


def _inputs(given: str | list[str | int | list[int]]) -> tuple[EmbeddingInput, ...]:
    if isinstance(given, str):
        return (given,)
    kinds = {type(item) for item in given}
    if len(kinds) > 1:
        _refuse("input: strings, tokens and arrays of tokens can't be mixed", "input", "invalid_type")
    if kinds == {int}:
        return (tuple(item for item in given if isinstance(item, int)),)
    return tuple(
        item if isinstance(item, str) else tuple(item) for item in given if not isinstance(item, int)
    )


def _check_sizes(inputs: tuple[EmbeddingInput, ...]) -> None:
    """A token counts as a character."""
    if not inputs:
        _refuse("input must not be empty", "input", "empty_input")
    if len(inputs) > MOST_INPUTS:
        _refuse(
            f"input: at most {MOST_INPUTS} texts in one request, got {len(inputs)}",
            "input",
            "embedding_batch_too_large",
        )
    for index, item in enumerate(inputs):
        where = "input" if len(inputs) == 1 else f"input[{index}]"
        if not item:
            _refuse(f"{where} must not be empty", where, "empty_input")
        if len(item) > MOST_CHARACTERS:
            message = f"{where}: at most {MOST_CHARACTERS} characters or tokens, got {len(item)}"
            raise BodyTooLarge(message, param=where, code="embedding_input_too_large")
    total = sum(map(len, inputs))
    if total > MOST_CHARACTERS_IN_ALL:
        message = f"input: at most {MOST_CHARACTERS_IN_ALL} characters or tokens in all, got {total}"
        raise BodyTooLarge(message, param="input", code="embedding_request_too_large")


def _format(given: str | None) -> Format:
    for known in FORMATS:
        if given in (None, known):
            return known
    _refuse(
        f"encoding_format must be float or base64, got {given!r}",
        "encoding_format",
        "unsupported_encoding_format",
    )


def _refuse(message: str, param: str, code: str = "invalid_value") -> NoReturn:
    raise InvalidRequest(message, param=param, code=code)
