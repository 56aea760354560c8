"""A GGUF file of a real model's size with random weights, for measurements that need no meaning.

    python tests/bench/synthetic.py FILE.gguf [--type Q4_1]
    python tests/bench/synthetic.py FILE.gguf --stretch MODEL.gguf

The shape is that of Llama-3.2-1B: 1.24 billion parameters, tied embedding, a vocabulary of 128,256 entries, a context
of 131,072 tokens. Blocks are made directly, so that it takes seconds and no more memory than the file. `--stretch`
copies a llama model and claims that context for it: what it says far beyond its own is of no use, what its steps cost is.
"""

from __future__ import annotations

import argparse
import itertools
import shutil
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
from gguf import GGUFReader, GGUFWriter
from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType, TokenType
from numpy.typing import NDArray

sys.path.append(str(Path(__file__).parents[1]))
from tiny_vocabulary import SPECIAL, byte_alphabet

Q = GGMLQuantizationType

CONTEXT = 131_072
LAYERS, HIDDEN, HEADS, KV_HEADS, HEAD_DIM, FEED_FORWARD, VOCABULARY = 16, 2048, 32, 8, 64, 8192, 128_256
TYPES = {"Q4_0": Q.Q4_0, "Q4_1": Q.Q4_1}


def write_llama_1b(path: Path, kind: Q) -> None:
    """Writes the file, about 0.7 GB for Q4_0 and 0.77 GB for Q4_1; the same type gives the same bytes."""
    writer = GGUFWriter(path, "llama")
    _write_keys(writer)
    _write_vocabulary(writer)
    rng = np.random.default_rng(0)
    for name, rows, columns in matrices():
        blocks = random_blocks(kind, rows * columns // 32, rng).reshape(rows, -1)
        writer.add_tensor(name, blocks, raw_dtype=kind)
    for name in norms():
        writer.add_tensor(name, np.ones(HIDDEN, np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def stretch(model: Path, path: Path) -> None:
    """Copies a llama model to `path`, its context set to CONTEXT. Raises KeyError for a file without one."""
    shutil.copyfile(model, path)
    field = GGUFReader(path, "r+").fields["llama.context_length"]
    field.parts[field.data[0]][0] = CONTEXT


def matrices() -> Iterator[tuple[str, int, int]]:
    """Name, rows and columns of every matrix."""
    yield "token_embd.weight", VOCABULARY, HIDDEN
    for layer in range(LAYERS):
        shapes = {
            "attn_q": (HEADS * HEAD_DIM, HIDDEN),
            "attn_k": (KV_HEADS * HEAD_DIM, HIDDEN),
            "attn_v": (KV_HEADS * HEAD_DIM, HIDDEN),
            "attn_output": (HIDDEN, HEADS * HEAD_DIM),
            "ffn_gate": (FEED_FORWARD, HIDDEN),
            "ffn_up": (FEED_FORWARD, HIDDEN),
            "ffn_down": (HIDDEN, FEED_FORWARD),
        }
        for name, (rows, columns) in shapes.items():
            yield f"blk.{layer}.{name}.weight", rows, columns


def norms() -> Iterator[str]:
    for layer in range(LAYERS):
        yield f"blk.{layer}.attn_norm.weight"
        yield f"blk.{layer}.ffn_norm.weight"
    yield "output_norm.weight"


def random_blocks(kind: Q, count: int, rng: np.random.Generator) -> NDArray[np.uint8]:
    """Valid blocks [count, bytes] whose weights have a spread that keeps activations finite."""
    data = rng.integers(0, 256, (count, GGML_QUANT_SIZES[kind][1]), dtype=np.uint8)
    scale = rng.uniform(0.5, 1, count) * 0.005
    data[:, 0:2] = _halves(scale)
    if kind is Q.Q4_1:
        data[:, 2:4] = _halves(-scale * rng.uniform(7, 8, count))
    return data


def _halves(values: NDArray[np.float64]) -> NDArray[np.uint8]:
    return values.astype("<f2").view(np.uint8).reshape(-1, 2)


def _write_keys(writer: GGUFWriter) -> None:
    writer.add_name("synthetic 1B")
    writer.add_block_count(LAYERS)
    writer.add_context_length(CONTEXT)
    writer.add_embedding_length(HIDDEN)
    writer.add_feed_forward_length(FEED_FORWARD)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_key_length(HEAD_DIM)
    writer.add_value_length(HEAD_DIM)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_freq_base(500_000.0)
    writer.add_rope_dimension_count(HEAD_DIM)
    writer.add_vocab_size(VOCABULARY)


def _write_vocabulary(writer: GGUFWriter) -> None:
    """Byte-level BPE of full size: all pairs of bytes, then triples, each with its merge."""
    alphabet = byte_alphabet()
    pairs = [(left, right) for left in alphabet for right in alphabet]
    triples = ((left + right, third) for left, right in pairs for third in alphabet)
    wanted = VOCABULARY - len(SPECIAL) - len(alphabet) - len(pairs)
    merges = [*pairs, *itertools.islice(triples, wanted)]
    tokens = [*SPECIAL, *alphabet, *(left + right for left, right in merges)]
    types = [TokenType.CONTROL] * len(SPECIAL) + [TokenType.NORMAL] * (len(tokens) - len(SPECIAL))
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("llama-bpe")
    writer.add_token_list(tokens)
    writer.add_token_types(types)
    writer.add_token_merges([f"{left} {right}" for left, right in merges])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_add_bos_token(False)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    parser.add_argument("file", type=Path)
    parser.add_argument("--type", choices=sorted(TYPES), default="Q4_0")
    parser.add_argument("--stretch", type=Path, metavar="MODEL.gguf")
    options = parser.parse_args(arguments)
    if options.stretch:
        stretch(options.stretch, options.file)
    else:
        write_llama_1b(options.file, TYPES[options.type])


if __name__ == "__main__":
    main()
