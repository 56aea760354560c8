"""From `LoadModel` to an encoder that can serve."""

from __future__ import annotations

import hashlib
import time
from pathlib import Path

import numpy as np
import openvino as ov

from ..model_errors import LoadError
from ..protocol import LoadModel, LoadStage, ModelInfo, SelfTest
from ..runners.backend import Progress
from ..runners.memory import available_bytes
from .config import ARCHITECTURE
from .graph import BUILDER_VERSION, build_encoder
from .model import EncoderRunner, LoadedEncoder
from .runner import OpenVinoEncoder, encoder_properties
from .source import EncoderModel, open_encoder
from .tokenizer import read_word_pieces

_FLOAT_BYTES = 4
# Weights lie in memory as constants of the graph and as packed by the plugin while it compiles.
_PEAK_FACTOR = 2.2
# Sums over a padded batch may be taken in another order than over one text.
_TOLERANCE = 1e-5


def load_encoder(spec: LoadModel, progress: Progress) -> LoadedEncoder:
    """Loads the encoder of `spec.model_path`. Raises ModelFileError for a bad file and LoadError for all else."""
    assert spec.model_path is not None
    if spec.device != "CPU":
        raise LoadError("unsupported_device", f"the device {spec.device} is not supported yet; CPU is")
    progress(LoadStage.READING)
    source = open_encoder(spec.model_path)
    tokenizer = read_word_pieces(source)
    _require_memory(source)
    progress(LoadStage.BUILDING)
    graph = build_encoder(source)
    progress(LoadStage.COMPILING)
    compiled = ov.Core().compile_model(graph, spec.device, encoder_properties(spec.threads))
    source.release_pages()
    runner = OpenVinoEncoder(compiled)
    progress(LoadStage.SELF_TEST)
    return LoadedEncoder(
        runner=runner,
        tokenizer=tokenizer,
        info=_info(source, spec, tokenizer.vocab_size),
        self_test=run_encoder_self_test(runner, source.config.context_length, tokenizer.vocab_size),
        cache_size=spec.embedding_cache_size,
    )


def run_encoder_self_test(runner: EncoderRunner, context_length: int, vocab_size: int) -> SelfTest:
    """Is a vector that of the text alone, and the same every time? There is nothing to roll back."""
    begun = time.perf_counter()
    random = np.random.default_rng(7)
    texts = [random.integers(0, vocab_size, min(n, context_length)).tolist() for n in (64, 9, 33)]
    together, again = runner.embed(texts), runner.embed(texts)
    alone = np.concatenate([runner.embed([text]) for text in texts])
    return SelfTest(
        rows_agree=bool(np.allclose(together, alone, atol=_TOLERANCE)),
        replay_agrees=bool(np.array_equal(together, again)),
        rollback_agrees=True,
        seconds=time.perf_counter() - begun,
    )


def _require_memory(source: EncoderModel) -> None:
    wanted, available = int(source.parameters * _FLOAT_BYTES * _PEAK_FACTOR), available_bytes()
    if wanted > available:
        raise LoadError(
            "out_of_memory",
            f"loading this model takes {wanted:,} bytes of memory and {available:,} are available",
        )


def _info(source: EncoderModel, spec: LoadModel, vocab_size: int) -> ModelInfo:
    config = source.config
    context_length = min(spec.max_context or config.context_length, config.context_length)
    facts = f"{_digest(spec)} {BUILDER_VERSION} {ov.get_version()} {spec.device}"
    return ModelInfo(
        name=spec.name,
        architecture=ARCHITECTURE,
        device=spec.device,
        context_length=context_length,
        vocab_size=vocab_size,
        parameters=source.parameters,
        weight_bytes=source.parameters * _FLOAT_BYTES,
        kv_bytes_per_token=0,
        kv_budget_bytes=0,
        block_tokens=0,
        exact=spec.exact,
        fingerprint=hashlib.sha256(facts.encode()).hexdigest(),
        dimensions=config.hidden,
    )


def _digest(spec: LoadModel) -> str:
    assert spec.model_path is not None
    if spec.model_digest:
        return spec.model_digest
    with Path(spec.model_path).open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
