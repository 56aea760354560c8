"""A GGUF file to a compiled, checked runner on an OpenVINO device."""

from __future__ import annotations

import gc
import hashlib
import json
import logging
from collections import Counter
from collections.abc import Mapping
from contextlib import nullcontext
from pathlib import Path
from typing import NamedTuple

import openvino as ov

from ..gguf.source import GgufModel
from ..gguf.weights import held_bytes, weight_kind
from ..graph.cache import GraphCache
from ..graph.decoder import BUILDER_VERSION, QKV, build_decoder
from ..graph.lowering import LoweringError, check_census, lower, take_census
from ..graph.weights import GraphWeights, rounds_minima
from ..model_errors import LoadError
from ..prompts.templates import read_template
from ..protocol import LoadModel, LoadStage
from ..text.tokenise import read_tokenizer
from .backend import Backend, Progress
from .memory import available_bytes, mapped_pages_kept_low
from .openvino import OpenVinoRunner, cpu_properties, native_precision

logger = logging.getLogger(__name__)

# While a model loads, its weights lie in memory as read and as packed by the plugin.
_PEAK_FACTOR = 2.2


def open_openvino(source: GgufModel, spec: LoadModel, progress: Progress) -> Backend:
    """Builds or reads the graph, lowers and compiles it, checks what came out.

    Raises LoadError: `unsupported_device`, `out_of_memory` (before anything is allocated), or `load_failed` when
    the plugin did not compile the graph as meant.
    """
    if spec.device != "CPU":
        raise LoadError("unsupported_device", f"the device {spec.device} is not supported yet; CPU is")
    weight_bytes = sum(
        held_bytes(t.type, *t.shape, rounds_minima(spec.minima, t.name))
        for t in source.tensors.values()
        if len(t.shape) == 2
    )
    _require_memory(weight_bytes)
    tokenizer = read_tokenizer(source)
    progress(LoadStage.BUILDING)
    core = ov.Core()
    properties = cpu_properties(spec.threads, native_precision(core))
    graph = _graph(core, source, spec)
    progress(LoadStage.COMPILING)
    compiled = _compile(core, graph.model, source, spec.device, properties)
    mapped, cache_hit = graph.mapped, graph.cache_hit
    del graph
    gc.collect()
    source.release_pages()
    return Backend(
        runner=OpenVinoRunner(compiled),
        tokenizer=tokenizer,
        template=read_template(source, tokenizer),
        defaults=source.sampling_defaults,
        architecture=source.config.architecture,
        device=spec.device,
        context_length=source.config.context_length,
        parameters=source.parameters,
        weight_bytes=weight_bytes,
        fingerprint=_fingerprint(core, spec, properties),
        cache_hit=cache_hit,
        notes=source.config.notes,
        # The plugin packs the weights in its first step and reads the file no more.
        first_steps=lambda: mapped_pages_kept_low(mapped) if mapped else nullcontext(),
    )


def _compile(
    core: ov.Core, model: ov.Model, source: GgufModel, device: str, properties: Mapping[str, object]
) -> ov.CompiledModel:
    """Lowers and compiles; raises LoadError when the weights did not stay small or attention is not paged."""
    try:
        lower(model)
        compiled = core.compile_model(model, device, dict(properties))
        check_census(take_census(compiled), source.config, expected_kinds(source))
    except LoweringError as error:
        raise LoadError("load_failed", str(error)) from error
    return compiled


def expected_kinds(source: GgufModel) -> Mapping[str, int]:
    """How many matrix products must stay u4, u8 and f16 after compiling. A tied embedding is one of them."""
    types = {name: tensor.type for name, tensor in source.tensors.items() if len(tensor.shape) == 2}
    if not source.config.tied_head:
        del types["token_embd.weight"]
    weights = GraphWeights(source)
    for layer in range(source.config.layers):
        names = [f"blk.{layer}.{name}.weight" for name in QKV]
        if weights.joinable(*names):
            for name in names[1:]:
                del types[name]
    return Counter(weight_kind(kind) for kind in types.values())


def _require_memory(weight_bytes: int) -> None:
    wanted, available = int(weight_bytes * _PEAK_FACTOR), available_bytes()
    if wanted > available:
        raise LoadError(
            "out_of_memory",
            f"loading this model takes {wanted:,} bytes of memory and {available:,} are available",
        )


class _Graph(NamedTuple):
    """A stateful graph; `mapped` is the file that its constants are mapped from, None when in memory."""

    model: ov.Model
    mapped: Path | None
    cache_hit: bool


def _graph(core: ov.Core, source: GgufModel, spec: LoadModel) -> _Graph:
    key = hashlib.sha256(f"{BUILDER_VERSION} {ov.get_version()} {spec.minima}".encode()).hexdigest()
    if spec.compile_cache_dir is None:
        return _Graph(build_decoder(source.config, GraphWeights(source, spec.minima)), None, False)
    cache = GraphCache(Path(spec.compile_cache_dir))
    mapped = cache.weights_file(spec.model_digest, key)
    cached = cache.load(core, spec.model_digest, key)
    if cached is not None:
        return _Graph(cached, mapped, True)
    built = build_decoder(source.config, GraphWeights(source, spec.minima))
    try:
        cache.store(built, spec.model_digest, key)
    except OSError as error:
        logger.warning("the graph cache is not used: %s", error)
        return _Graph(built, None, False)
    del built
    gc.collect()
    stored = cache.load(core, spec.model_digest, key)
    assert stored is not None, "a graph that was just stored is there"
    return _Graph(stored, mapped, False)


def _fingerprint(core: ov.Core, spec: LoadModel, properties: Mapping[str, object]) -> str:
    """What has to be equal for KV of another run to be usable (I5), as a SHA-256 in hexadecimal.

    Rows were proven equal for the thread counts of one machine only, so that count is part of it.
    """
    facts = {
        "model": spec.model_digest,
        "builder": BUILDER_VERSION,
        "minima": spec.minima,
        "exact": spec.exact,
        "openvino": ov.get_version(),
        "device": spec.device,
        "device_name": core.get_property(spec.device, "FULL_DEVICE_NAME"),
        "capabilities": core.get_property(spec.device, "OPTIMIZATION_CAPABILITIES"),
        "threads": spec.threads,
        "properties": {name: str(value) for name, value in properties.items()},
    }
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()
