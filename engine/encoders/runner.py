"""An encoder on an OpenVINO device: token ids in, vectors out."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import openvino as ov
from numpy.typing import NDArray

from .model import Vectors

Ids = NDArray[np.int32]


def encoder_properties(threads: int) -> dict[str, object]:
    """Plugin settings; `threads` 0 takes the plugin's default.

    float32 everywhere: vectors of the same text are compared across machines and years, and the models are small.
    """
    properties: dict[str, object] = {"PERFORMANCE_HINT": "LATENCY", "INFERENCE_PRECISION_HINT": "f32"}
    if threads:
        properties["INFERENCE_NUM_THREADS"] = threads
    return properties


class OpenVinoEncoder:
    """Runs a compiled graph of `encoders.graph`."""

    def __init__(self, compiled: ov.CompiledModel) -> None:
        self._request = compiled.create_infer_request()

    def embed(self, texts: Sequence[Sequence[int]]) -> Vectors:
        """The vectors [texts, hidden] of texts of whatever lengths; the caller owns them."""
        ids, mask = padded(texts)
        self._request.infer({"input_ids": ids, "attention_mask": mask})
        return np.array(self._request.get_output_tensor(0).data, np.float32)


def padded(texts: Sequence[Sequence[int]]) -> tuple[Ids, Ids]:
    """Ids and mask [texts, longest]; the ids of padding are 0 and mean nothing."""
    lengths = np.array([len(text) for text in texts])
    mask = np.arange(lengths.max()) < lengths[:, None]
    ids = np.zeros(mask.shape, np.int32)
    ids[mask] = np.concatenate([np.asarray(text, np.int32) for text in texts])
    return ids, mask.astype(np.int32)
