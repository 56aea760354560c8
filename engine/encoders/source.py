"""A GGUF file as an encoder. Opening reads the header only and checks all that needs no weights."""

from __future__ import annotations

import mmap
from pathlib import Path

from ..gguf.header import Header
from ..gguf.source import GgufFile, check_tensors, map_gguf
from .config import (
    ARCHITECTURE,
    EncoderConfig,
    encoder_shapes,
    is_encoder,
    read_encoder_config,
)

__all__ = ["EncoderModel", "holds_encoder", "open_encoder"]


class EncoderModel(GgufFile):
    """An opened, checked file of an encoder."""

    def __init__(self, mapping: mmap.mmap, header: Header) -> None:
        super().__init__(mapping, header.metadata, header.tensors)
        self.config: EncoderConfig = read_encoder_config(header.metadata, header.tensors)


def holds_encoder(path: Path | str) -> bool:
    """True if the file holds an encoder. Raises ModelFileError for one that is no GGUF file."""
    _, header = map_gguf(path)
    return is_encoder(header.metadata)


def open_encoder(path: Path | str) -> EncoderModel:
    """Opens and checks a GGUF file with an encoder. Raises ModelFileError as `open_gguf` does."""
    model = EncoderModel(*map_gguf(path))
    check_tensors(ARCHITECTURE, encoder_shapes(model.config), model.tensors, frozenset())
    return model
