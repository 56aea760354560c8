"""From a stateful graph to a paged one, and the check that the plugin compiled what was meant.

The pass lives in an underscore module of the OpenVINO wheel, so the version is pinned and the resulting inputs
are checked by name at every load.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

import openvino as ov
from openvino._offline_transformations import paged_attention_transformation

from ..gguf.model_config import ModelConfig
from .ops import runtime_value

STEP_INPUTS = frozenset(
    {
        "input_ids",
        "position_ids",
        "past_lens",
        "subsequence_begins",
        "block_indices",
        "block_indices_begins",
        "max_context_len",
        "logit_rows",
    }
)


class LoweringError(Exception):
    """The graph did not become what it has to be; running it would be wrong or many times slower."""


def lower(model: ov.Model) -> None:
    """Turns KV states into pools and block tables that are ordinary inputs, in place.

    Raises LoweringError when an input that a step needs is missing afterwards.
    """
    _keep_half_weights(model)
    paged_attention_transformation(model)
    names = {port.any_name for port in model.inputs}
    missing = STEP_INPUTS - names
    if missing:
        raise LoweringError(f"inputs missing after the paged transformation: {', '.join(sorted(missing))}")


def _keep_half_weights(model: ov.Model) -> None:
    """Marks float16 weights as compressed, or constant folding would make them float32.

    The mark is that of ov::mark_as_decompression; graph files do not carry it, so it is set at each load.
    """
    for node in model.get_ops():
        if node.get_type_name() != "Convert":
            continue
        producer = node.input_value(0).get_node()
        if producer.get_type_name() == "Constant" and node.input_value(0).get_element_type() == ov.Type.f16:
            node.get_rt_info()["decompression_0"] = ""


@dataclass(frozen=True, slots=True)
class Census:
    """What the compiled graph consists of: paged attention nodes, and matrix products by weight type."""

    paged_attention: int
    products: Mapping[str, int]


def take_census(compiled: ov.CompiledModel) -> Census:
    """Counts the runtime layers that decide the speed."""
    products: Counter[str] = Counter()
    paged = 0
    for node in compiled.get_runtime_model().get_ops():
        layer = runtime_value(node.get_rt_info()["layerType"])
        if layer == "PagedAttention":
            paged += 1
        elif layer == "FullyConnected":
            products[node.input_value(1).get_element_type().to_string()] += 1
    return Census(paged, products)


def check_census(census: Census, config: ModelConfig, expected: Mapping[str, int]) -> None:
    """Raises LoweringError unless attention is paged and each weight kept its type.

    `expected` maps u4, u8 and f16 to the number of matrices that the file has of each.
    """
    if census.paged_attention != config.layers:
        raise LoweringError(f"{census.paged_attention} of {config.layers} attention layers are paged")
    for kind, count in expected.items():
        if census.products[kind] < count:
            raise LoweringError(f"{census.products[kind]} of {count} matrices stayed {kind} after compiling")
