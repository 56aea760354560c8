"""A draft model beside the one that it is to draft for: does it fit, and what does it take."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from ..model_errors import LoadError, ModelFileError
from ..prefix.block_cache import BlockCache
from ..protocol import DraftModelInfo, LoadModel
from ..runners.backend import Backend
from ..runners.memory import KvBudget
from ..runners.self_test import run_self_test
from ..text.tokenise import Tokenizer
from .draft_model import DraftModel
from .vocabularies import first_difference, spelled


@dataclass(frozen=True, slots=True)
class LoadedDraft:
    """A draft model with pools allocated; `vocab_size`, `rows` and `share` are those of `DraftModel`."""

    name: str
    backend: Backend
    blocks: int
    context_length: int
    vocab_size: int
    rows: int
    share: float
    costs_file: Path | None
    is_sound: bool

    def model(self) -> DraftModel:
        """The model with a new, empty index over its pools; there must be one only."""
        runner, fingerprint = self.backend.runner, self.backend.fingerprint
        return DraftModel(
            runner=runner,
            cache=BlockCache(fingerprint, self.blocks, 0, runner.geometry.block_tokens),
            context_length=self.context_length,
            vocab_size=self.vocab_size,
            rows=self.rows,
            share=self.share,
            ends=self.backend.tokenizer.eos_ids,
            costs_file=self.costs_file,
        )

    @property
    def info(self) -> DraftModelInfo:
        """What a person is told of it."""
        return DraftModelInfo(
            name=self.name,
            parameters=self.backend.parameters,
            weight_bytes=self.backend.weight_bytes,
            kv_budget_bytes=self.blocks * self.backend.runner.geometry.block_bytes,
            context_length=self.context_length,
        )

    @property
    def note(self) -> str | None:
        """What is wrong with it; it can't do harm."""
        return None if self.is_sound else f"{self.name} failed its self-test: its drafts may be bad"


def draft_spec(spec: LoadModel) -> LoadModel | None:
    """How the draft model is loaded; None when there is none, or nothing to draft."""
    file = spec.draft_model
    if file is None or not spec.max_draft_tokens:
        return None
    return replace(
        spec,
        name=file.name,
        model_path=file.path,
        model_digest=file.digest,
        draft_model=None,
        reference_step_s=0.0,
    )


@contextmanager
def reasons_told(spec: LoadModel, draft: LoadModel) -> Iterator[None]:
    """Makes what is wrong with the draft model the reason why the other one can't be loaded, with both names."""
    try:
        yield
    except ModelFileError as error:
        raise unfit(spec, draft, error.message) from error
    except LoadError as error:
        raise LoadError(error.code, _sentence(spec, draft, error.message)) from error


def unfit(spec: LoadModel, draft: LoadModel, reason: str) -> LoadError:
    """Why a model can't draft for another."""
    return LoadError("invalid_draft_model", _sentence(spec, draft, reason))


def check_vocabularies(spec: LoadModel, own: Tokenizer, draft: LoadModel, other: Tokenizer) -> None:
    """Raises LoadError when a token means something else to the draft model."""
    token = first_difference(own, other)
    if token is not None:
        reason = f"token {token} is {spelled(other, token)} there and {spelled(own, token)} here"
        raise unfit(spec, draft, f"their vocabularies differ: {reason}")


def check_state(spec: LoadModel, draft: LoadModel, backend: Backend) -> None:
    """Raises LoadError when a rejected draft could not be taken back."""
    if backend.runner.geometry.state_bytes:
        raise unfit(spec, draft, "it has recurrent state")


def prepare_draft(draft: LoadModel, backend: Backend, target: Backend, kv: KvBudget) -> LoadedDraft:
    """Allocates the pools as `kv` says and runs the self-test. Raises MemoryError."""
    runner = backend.runner
    runner.allocate(kv.draft_blocks, 0)
    with backend.first_steps():
        self_test = run_self_test(runner)
    return LoadedDraft(
        name=draft.name,
        backend=backend,
        blocks=kv.draft_blocks,
        context_length=min(backend.context_length, kv.context_length),
        vocab_size=min(backend.tokenizer.vocab_size, target.tokenizer.vocab_size, runner.vocab_size),
        rows=target.runner.vocab_size,
        share=backend.parameters / target.parameters,
        costs_file=_costs_file(draft, backend),
        is_sound=self_test.passed,
    )


def _costs_file(draft: LoadModel, backend: Backend) -> Path | None:
    if draft.compile_cache_dir is None or draft.model_path is None:
        return None
    # Not the file that the same model has as one that is drafted for: both would write it.
    return Path(draft.compile_cache_dir) / f"draft-step-costs-{backend.fingerprint[:16]}.json"


def _sentence(spec: LoadModel, draft: LoadModel, reason: str) -> str:
    return f"{draft.name} can't draft for {spec.name}: {reason}"
