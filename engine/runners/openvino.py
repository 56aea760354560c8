"""The OpenVINO runner: a compiled paged graph, and KV pools that belong to us.

The pools are inputs of the graph backed by NumPy arrays: the plugin updates them in place, so a snapshot is a read,
a fork a block number, a truncation an integer.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
import openvino as ov
from numpy.typing import NDArray

from .memory import zeroed_pages
from .runner import KvGeometry, Logits, SequenceSlice, Stateless, StepPlan

Pool = NDArray[np.generic]


def cpu_properties(threads: int, precision: str = "f32") -> dict[str, object]:
    """Plugin settings for exact, fast decoding on a CPU; `threads` 0 takes the plugin's default.

    `precision` is that of activations between matrix products, which run in int8 by dynamic quantisation. KV is
    u8 with scales per token: per channel, the plugin's default, would be re-quantised as a block fills, so that
    cutting a sequence back would not give the same bits.
    """
    properties: dict[str, object] = {
        "PERFORMANCE_HINT": "LATENCY",
        "INFERENCE_PRECISION_HINT": precision,
        "KV_CACHE_PRECISION": "u8",
        "KEY_CACHE_QUANT_MODE": "BY_TOKEN",
        "DYNAMIC_QUANTIZATION_GROUP_SIZE": 32,
    }
    if threads:
        properties["INFERENCE_NUM_THREADS"] = threads
    return properties


def native_precision(core: ov.Core) -> str:
    """bf16 where the CPU computes in it: long prompts are a quarter faster, decoding is the same, and the text
    moves by less than int8 activations move it (docs/engine-notes.md). f32 elsewhere."""
    return "bf16" if "BF16" in core.get_property("CPU", "OPTIMIZATION_CAPABILITIES") else "f32"


class OpenVinoRunner(Stateless):
    """Implements `Runner` over a compiled model whose inputs are those of `lowering.STEP_INPUTS` and the pools."""

    def __init__(self, compiled: ov.CompiledModel) -> None:
        self._request = compiled.create_infer_request()
        self._ports = {p.any_name: p for p in compiled.inputs if "_cache." in p.any_name}
        self._vocab_size = compiled.output(0).partial_shape[-1].get_length()
        self._pools: list[Pool] = []
        self._inputs: dict[str, ov.Tensor] = {}
        block_tokens = {p.partial_shape[2].get_length() for p in self._ports.values()}
        assert len(block_tokens) == 1, f"pools disagree about the block size: {block_tokens}"
        block_bytes = sum(_block_elements(p) * p.element_type.size for p in self._ports.values())
        self._geometry = KvGeometry(block_tokens.pop(), block_bytes)

    @property
    def geometry(self) -> KvGeometry:
        return self._geometry

    @property
    def vocab_size(self) -> int:
        return int(self._vocab_size)

    def allocate(self, blocks: int, state_rows: int) -> None:
        assert not self._pools, "pools are allocated once"
        for name, port in self._ports.items():
            shape = [blocks, *(d.get_length() for d in list(port.partial_shape)[1:])]
            dtype = port.element_type.to_dtype()
            pages = zeroed_pages(int(np.prod(shape)) * dtype.itemsize)
            pool = np.frombuffer(pages, dtype).reshape(shape)
            self._pools.append(pool)
            self._request.set_tensor(name, ov.Tensor(pool, shared_memory=True))

    def forward(self, plan: StepPlan) -> Logits:
        for name, value in step_inputs(plan.slices).items():
            self._feed(name, value)
        self._request.infer()
        logits: Logits = self._request.get_output_tensor(0).data.reshape(-1, self.vocab_size)
        return logits

    def _feed(self, name: str, value: NDArray[np.generic]) -> None:
        """Sets an input; one that keeps its shape from step to step, as in decoding, is only written over."""
        held = self._inputs.get(name)
        if held is not None and held.data.shape == value.shape:
            held.data[...] = value
            return
        self._inputs[name] = ov.Tensor(value)
        self._request.set_tensor(name, self._inputs[name])

    def copy_block(self, source: int, target: int) -> None:
        for pool in self._pools:
            pool[target] = pool[source]

    def read_block(self, block: int) -> bytes:
        return b"".join(pool[block].tobytes() for pool in self._pools)

    def write_block(self, block: int, data: bytes) -> None:
        if len(data) != self.geometry.block_bytes:
            raise ValueError(f"a block has {self.geometry.block_bytes} bytes, not {len(data)}")
        offset = 0
        for pool in self._pools:
            size = pool[block].nbytes
            pool[block] = np.frombuffer(data, pool.dtype, pool[block].size, offset).reshape(pool.shape[1:])
            offset += size


def _block_elements(port: ov.ConstOutput) -> int:
    return int(np.prod([d.get_length() for d in list(port.partial_shape)[1:]]))


def step_inputs(slices: Sequence[SequenceSlice]) -> dict[str, NDArray[np.generic]]:
    """The graph inputs of a step; sequences lie one behind the other along the token axis."""
    begins = _offsets(len(part.tokens) for part in slices)
    ends = [part.past + len(part.tokens) for part in slices]
    tables = [part.block_table for part in slices]
    rows = [begin + row for begin, part in zip(begins, slices, strict=False) for row in part.rows]
    positions = [np.arange(part.past, end) for part, end in zip(slices, ends, strict=True)]
    return {
        "input_ids": np.array([token for part in slices for token in part.tokens], np.int64),
        "position_ids": np.concatenate(positions).astype(np.int64),
        "past_lens": np.array([part.past for part in slices], np.int32),
        "subsequence_begins": begins,
        "block_indices": np.array([block for table in tables for block in table], np.int32),
        "block_indices_begins": _offsets(len(table) for table in tables),
        "max_context_len": np.array(max(ends), np.int32),
        "logit_rows": np.array(rows, np.int64),
    }


def _offsets(lengths: Iterable[int]) -> NDArray[np.int32]:
    """0 and the running sums of `lengths`."""
    return np.cumsum([0, *lengths]).astype(np.int32)
