"""From `LoadModel` to a model that can serve: runner, prompter, sizes, self-test."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path

from .capsules.disk import CapsuleDisk
from .capsules.store import CapsuleStore
from .config import DraftLimits, EngineConfig, first_chunk
from .drafting.draft_model import DraftModel
from .drafting.loading import (
    LoadedDraft,
    check_state,
    check_vocabularies,
    draft_spec,
    prepare_draft,
    reasons_told,
)
from .gguf.source import open_gguf
from .model_errors import LoadError
from .prefix.block_cache import BlockCache
from .prompts.decorations import Decorations
from .prompts.prompting import Prompter
from .protocol import LoadModel, LoadStage, ModelInfo, SelfTest
from .replies.formats import ReplyFormats, find_formats
from .runners.backend import Backend, Progress
from .runners.huge_pages import join_pages_in_background
from .runners.memory import KvBudget, available_bytes, plan_kv
from .runners.runner import Runner
from .runners.self_test import run_self_test
from .scheduling.admission import Admission
from .text.tokenise import Tokenizer, read_tokenizer

_LOG = logging.getLogger(__name__)
# Rows of recurrent state, where a model has them: one per session and some to spare.
_STATE_ROWS = 256


@dataclass(frozen=True, slots=True)
class CapsuleLimits:
    """What pins may take of the pool, and capsules of the disk below `folder`; None keeps nothing on disk."""

    pool_bytes: int = 0
    folder: Path | None = None
    disk_bytes: int = 0


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """All that a worker needs to serve, with pools allocated and the self-test run."""

    runner: Runner
    prompter: Prompter
    info: ModelInfo
    config: EngineConfig
    blocks: int
    state_rows: int
    self_test: SelfTest
    cache_hit: bool
    capsules: CapsuleLimits = CapsuleLimits()
    admission: Admission = field(default_factory=Admission)
    draft: LoadedDraft | None = None

    def draft_model(self) -> DraftModel | None:
        """The model that drafts for this one, if any, with a new index; there must be one only."""
        return self.draft.model() if self.draft else None

    def block_cache(self) -> BlockCache:
        """A new, empty index over the pools; there must be one only."""
        return BlockCache(self.info.fingerprint, self.blocks, self.state_rows, self.info.block_tokens)

    def capsule_store(self, cache: BlockCache, on_room: Callable[[], None]) -> CapsuleStore:
        """Pins and the disk tier of `cache`; `on_room` is called from another thread when saving can go on."""
        limits, geometry = self.capsules, self.runner.geometry
        budget = min(limits.pool_bytes, self.blocks * geometry.block_bytes // 2)
        disk = None
        if limits.folder is not None and limits.disk_bytes:
            try:
                disk = CapsuleDisk(limits.folder, self.info.fingerprint, geometry, limits.disk_bytes)
                disk.background.on_room = on_room
            except OSError as error:
                _LOG.warning("nothing is kept on disk: %s", error.strerror)
        return CapsuleStore(cache, self.runner, budget, disk)


def load(spec: LoadModel, progress: Progress) -> LoadedModel:
    """Loads what `spec` names. Raises ModelFileError for a bad file and LoadError for anything else."""
    progress(LoadStage.READING)
    draft = draft_spec(spec)
    if draft is not None:
        # Before anything is built, which may take minutes.
        with reasons_told(spec, draft):
            other = _tokenizer(draft)
        check_vocabularies(spec, _tokenizer(spec), draft, other)
    backend = _backend(spec, progress)
    if draft is None:
        return _prepare(spec, backend, progress)
    with reasons_told(spec, draft):
        drafting = _backend(draft, lambda _stage: None)
    check_state(spec, draft, drafting)
    return _prepare(spec, backend, progress, (draft, drafting))


def _backend(spec: LoadModel, progress: Progress) -> Backend:
    return _reference(spec) if spec.model_path is None else _gguf(spec, spec.model_path, progress)


def _tokenizer(spec: LoadModel) -> Tokenizer:
    if spec.model_path is None:
        return _reference(spec).tokenizer
    return read_tokenizer(open_gguf(spec.model_path))


def _reference(spec: LoadModel) -> Backend:
    from .runners.reference_model import open_reference

    return open_reference(spec)


def _gguf(spec: LoadModel, path: str, progress: Progress) -> Backend:
    # Imported here: a worker of the reference model must not pay for OpenVINO.
    from .runners.loading import open_openvino

    source = open_gguf(path)
    if not spec.model_digest:
        with open(path, "rb") as file:
            spec = replace(spec, model_digest=hashlib.file_digest(file, "sha256").hexdigest())
    return open_openvino(source, spec, progress)


def _prepare(
    spec: LoadModel, backend: Backend, progress: Progress, drafting: tuple[LoadModel, Backend] | None = None
) -> LoadedModel:
    """Sizes and allocates the pools, runs the self-test; so for the draft model, too."""
    try:
        kv = _plan_kv(spec, backend, drafting[1] if drafting else None)
        state_rows = _STATE_ROWS if backend.runner.geometry.state_bytes else 0
        backend.runner.allocate(kv.blocks, state_rows)
        progress(LoadStage.SELF_TEST)
        draft = prepare_draft(*drafting, backend, kv) if drafting else None
    except MemoryError as error:
        raise LoadError("out_of_memory", str(error)) from error
    with backend.first_steps():
        self_test = run_self_test(backend.runner)
    join_pages_in_background()
    config = _config(spec, backend, kv.context_length)
    formats = _formats(spec, backend)
    return LoadedModel(
        runner=backend.runner,
        prompter=_prompter(spec, backend, config, formats),
        info=_info(spec, backend, formats, kv, draft),
        config=config,
        blocks=kv.blocks,
        state_rows=state_rows,
        self_test=self_test,
        cache_hit=backend.cache_hit,
        capsules=_capsule_limits(spec),
        admission=Admission(spec.max_prompt_tokens, spec.max_output_tokens, spec.queue_wait_s),
        draft=draft,
    )


def _plan_kv(spec: LoadModel, backend: Backend, drafting: Backend | None) -> KvBudget:
    wanted = min(spec.max_context or backend.context_length, backend.context_length)
    beside = drafting.runner.geometry if drafting else None
    return plan_kv(backend.runner.geometry, wanted, spec.kv_budget_bytes, available_bytes(), beside)


def _prompter(spec: LoadModel, backend: Backend, config: EngineConfig, formats: ReplyFormats) -> Prompter:
    return Prompter(
        backend.tokenizer,
        backend.template,
        backend.defaults,
        config.context_length,
        Decorations(spec.strip_decorations),
        draft_limits=config.draft_limits,
        formats=formats,
    )


def _formats(spec: LoadModel, backend: Backend) -> ReplyFormats:
    template = backend.template.source if backend.template else ""
    try:
        return find_formats(template, backend.tokenizer, spec.tool_format, spec.reasoning_format)
    except ValueError as error:
        raise LoadError("load_failed", str(error)) from error


def _note_on_tools(backend: Backend) -> str | None:
    if backend.template is None or "tools" in backend.template.source:
        return None
    return "the chat template takes no tools: this model is not told of any"


def _config(spec: LoadModel, backend: Backend, context_length: int) -> EngineConfig:
    return EngineConfig(
        context_length,
        spec.exact,
        first_chunk=first_chunk(backend.parameters),
        max_sessions=spec.max_sessions,
        session_idle_s=spec.session_idle_s,
        draft_limits=DraftLimits(spec.draft_tokens, spec.max_draft_tokens),
        step_costs_file=_step_costs_file(spec, backend),
    )


def _step_costs_file(spec: LoadModel, backend: Backend) -> Path | None:
    if spec.compile_cache_dir is None or spec.model_path is None:
        return None
    # Other code, another machine or other threads make another fingerprint, and steps of another cost.
    return Path(spec.compile_cache_dir) / f"step-costs-{backend.fingerprint[:16]}.json"


def _capsule_limits(spec: LoadModel) -> CapsuleLimits:
    folder = Path(spec.capsule_dir) if spec.capsule_dir else None
    return CapsuleLimits(spec.capsule_budget_bytes, folder, spec.capsule_disk_bytes)


def _info(
    spec: LoadModel, backend: Backend, formats: ReplyFormats, kv: KvBudget, draft: LoadedDraft | None
) -> ModelInfo:
    geometry = backend.runner.geometry
    notes = (kv.note, _note_on_tools(backend), draft.note if draft else None)
    return ModelInfo(
        name=spec.name,
        architecture=backend.architecture,
        device=backend.device,
        context_length=kv.context_length,
        vocab_size=backend.runner.vocab_size,
        parameters=backend.parameters,
        weight_bytes=backend.weight_bytes,
        kv_bytes_per_token=geometry.token_bytes,
        kv_budget_bytes=kv.blocks * geometry.block_bytes,
        block_tokens=geometry.block_tokens,
        exact=spec.exact,
        fingerprint=backend.fingerprint,
        notes=(*backend.notes, *filter(None, notes)),
        draft_tokens=spec.max_draft_tokens,
        draft_model=draft.info if draft else None,
        tool_format=formats.tool_format,
        reasoning_format=formats.reasoning_format,
    )
