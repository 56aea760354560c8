"""From the name in a request to the worker that serves it.

Which model a name means, and what is stopped to make room, are decided by pure functions; `Router` acts on
them. The requested model is the one that runs: an unknown name is an error, unless the settings map it to the default.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, NamedTuple, cast

from ...engine.protocol import DraftModelFile, LoadModel, Minima, ModelInfo
from ..config import Settings
from ..errors import InvalidRequest, ModelNotFound, QueueFull, StoreError, Unavailable
from ..store.model_files import capsule_folder
from ..store.model_names import parse_name
from ..store.registry import ModelStore, StoredModel, UnknownModel
from .lifecycle import State
from .process import Command, worker_command
from .retry_after import retry_after
from .supervisor import Supervisor

REFERENCE = "reference"
MOCK_DEVICE = "mock"
# Clients give up on a response without headers after 120 s at the earliest, and then ask anew.
_LOAD_PATIENCE_S = 100.0

Purpose = Literal["generation", "embedding", "any"]


class Target(NamedTuple):
    """A model that can be loaded. `digest` keeps apart what a name meant before and after a new pull.

    `dimensions` are those of its vectors if it makes embeddings, 0 if it generates text. `tool_format` and
    `reasoning_format` are what the settings say of it, and `draft_model` is the one that drafts for it.
    """

    name: str
    digest: str
    path: Path | None
    dimensions: int = 0
    tool_format: str = "auto"
    reasoning_format: str = "auto"
    draft_model: DraftModelFile | None = None


class Slot(NamedTuple):
    """What the choice of a victim knows of a loaded model; `last_used` is on a monotonic clock.

    `wait_s` is for how long it will be busy, by what was measured.
    """

    target: Target
    holders: int
    last_used: float
    wait_s: float = 0.0


def choose_victim(slots: Iterable[Slot], limit: int) -> Target | None:
    """What to stop before one more model may be loaded; None when there is room.

    Takes the least recently used of those that nobody holds. Raises Unavailable when all are held.
    """
    loaded = list(slots)
    if len(loaded) < limit:
        return None
    idle = [slot for slot in loaded if slot.holders == 0]
    if not idle:
        raise Unavailable(
            f"All {len(loaded)} loaded models are busy and no more than {limit} may be loaded at once "
            "(max_loaded_models)",
            code="device_busy",
            retry_after=retry_after(min(slot.wait_s for slot in loaded)),
        )
    return min(idle, key=lambda slot: slot.last_used).target


def canonical_name(name: str, aliases: Mapping[str, str]) -> str:
    """The configured aliases applied once; an alias may be given with or without the tag `latest`."""
    return _of_model(aliases, name) or name


def _of_model(table: Mapping[str, str], *names: str) -> str | None:
    """What a table of the settings says of a model with these names, each with or without the tag `latest`."""
    keys = (key for name in names for key in (name, name.removesuffix(":latest")))
    return next((table[key] for key in keys if table.get(key)), None)


def find_in_store(store: ModelStore, name: str) -> StoredModel:
    """The stored model called `name`. Raises ModelNotFound, and Unavailable when the store is damaged."""
    try:
        parse_name(name)
    except StoreError:
        raise ModelNotFound(f"There is no model {name!r}. See `agentserve list`", param="model") from None
    try:
        return store.resolve(name)
    except UnknownModel as error:
        raise ModelNotFound(str(error), param="model") from None
    except StoreError as error:
        raise Unavailable("The model store can't be read; see `agentserve list`") from error


def check_purpose(target: Target, purpose: Purpose) -> None:
    """Raises InvalidRequest when a model is asked for what it can't do."""
    if purpose == "generation" and target.dimensions:
        message = f"{target.name} makes embeddings; it can't generate text. See /v1/models for those that can"
        raise InvalidRequest(message, param="model", code="invalid_chat_model")
    if purpose == "embedding" and not target.dimensions:
        message = f"{target.name} generates text; it can't make embeddings. `agentserve pull all-minilm` gets one that can"
        raise InvalidRequest(message, param="model", code="invalid_embedding_model")


def draft_file(model: Target, draft: Target) -> DraftModelFile:
    """What the worker of `model` is told of its draft model. Raises Unavailable when one of them makes embeddings."""
    for one in (model, draft):
        if one.dimensions:
            raise draft_refused(model.name, draft.name, f"{one.name} makes embeddings")
    path = None if draft.path is None else str(draft.path)
    return DraftModelFile(draft.name, path, draft.digest.removeprefix("sha256:"))


def draft_refused(name: str, draft: str, reason: str) -> Unavailable:
    """Why a model is not loaded with the draft model that the settings name."""
    message = f"{draft} can't draft for {name}: {reason} (draft_models in config.toml)"
    return Unavailable(message, code="invalid_draft_model")


@dataclass(slots=True)
class _Place:
    supervisor: Supervisor
    holders: int = 0
    last_used: float = 0.0

    @property
    def is_loaded(self) -> bool:
        return self.holders > 0 or self.supervisor.state not in (State.STOPPED, State.FAILED)


@dataclass(slots=True)
class Router:
    """Owns the supervisors. `on_change` is called when any of them changes."""

    settings: Settings
    store: ModelStore
    compile_cache: Path | None = None
    command: Command = worker_command
    on_change: Callable[[], None] = lambda: None
    closed: bool = False
    capsules: Path | None = None
    _places: dict[Target, _Place] = field(default_factory=dict)
    _placing: asyncio.Lock = field(default_factory=asyncio.Lock)

    @property
    def default_model(self) -> str:
        return REFERENCE if self.settings.mock else self.settings.model

    def supervisors(self) -> tuple[Supervisor, ...]:
        """All that have been asked for and not evicted since, running or not."""
        return tuple(place.supervisor for place in self._places.values())

    async def resolve(self, name: str, purpose: Purpose = "generation") -> Target:
        """What a request for `name` runs: with the setting `unknown_model` at `default`, the default model for a name
        that no model has. Raises ModelNotFound or Unavailable."""
        try:
            return await self.find(name)
        except ModelNotFound:
            if self.settings.unknown_model == "error":
                raise
        return await self.find(
            self.settings.embedding_model if purpose == "embedding" else self.default_model
        )

    async def find(self, name: str) -> Target:
        """The model called `name`, under this name or an alias, as the settings want it.

        Raises ModelNotFound, or Unavailable when the store is damaged or the model's draft model can't be used.
        """
        target, names = await self._named(name)
        return target._replace(
            tool_format=_of_model(self.settings.tool_formats, *names) or "auto",
            reasoning_format=_of_model(self.settings.reasoning_formats, *names) or "auto",
            draft_model=await self._draft_for(target, names),
        )

    async def _named(self, name: str) -> tuple[Target, tuple[str, ...]]:
        """The model called `name`, and all of its names."""
        wanted = canonical_name(name, self.settings.aliases)
        if self.settings.mock:
            target = _reference(wanted)
            return target, (target.name,)
        model = await asyncio.to_thread(find_in_store, self.store, wanted)
        dimensions = model.info.get("dimensions", 0)
        target = Target(
            model.name, model.digest, model.path, dimensions if isinstance(dimensions, int) else 0
        )
        return target, (target.name, *model.aliases)

    async def _draft_for(self, target: Target, names: Iterable[str]) -> DraftModelFile | None:
        """The draft model of a model with these names; None when the settings name none, or turn speculation off."""
        name = _of_model(self.settings.draft_models, *names)
        if name is None or not self.settings.max_draft_tokens:
            return None
        try:
            draft, _ = await self._named(name)
        except ModelNotFound as error:
            raise draft_refused(target.name, name, error.message) from None
        return draft_file(target, draft)

    @asynccontextmanager
    async def hold(self, name: str, purpose: Purpose = "generation") -> AsyncIterator[Supervisor]:
        """The supervisor for `name`, which is not evicted while the block runs. It may have to load first.

        Raises ModelNotFound, InvalidRequest for a model that can't do it, QueueFull, and Unavailable when closed or
        when there is no room.
        """
        target = await self.resolve(name, purpose)
        check_purpose(target, purpose)
        place = await self._place_for(target)
        self._check_open()
        self._check_queue(place)
        place.holders += 1
        try:
            yield place.supervisor
        finally:
            place.holders -= 1
            place.last_used = time.monotonic()

    async def ready(self, supervisor: Supervisor, patience: float = _LOAD_PATIENCE_S) -> ModelInfo:
        """The model of a held supervisor, loaded if need be. The load goes on after `patience` seconds.

        Raises Unavailable when it can't be loaded, is still loading, or the router is closed.
        """
        self._check_open()
        try:
            async with asyncio.timeout(patience):
                return await supervisor.ensure_ready()
        except TimeoutError:
            name = supervisor.load.name
            raise Unavailable(
                f"{name} is still loading", code="model_loading", retry_after=retry_after(supervisor.wait_s)
            ) from None

    def close(self) -> None:
        """From now on no request is taken up."""
        self.closed = True

    async def stop(self) -> None:
        """Closes and ends all workers; requests that they still have fail as Unavailable."""
        self.close()
        await asyncio.gather(*(supervisor.stop() for supervisor in self.supervisors()))

    def kill(self) -> None:
        """Closes and ends all workers the hard way."""
        self.close()
        for supervisor in self.supervisors():
            supervisor.kill()

    def _check_open(self) -> None:
        if self.closed:
            # By then this daemon has ended, and another one may have taken its place.
            wait = retry_after(self.settings.drain_timeout)
            raise Unavailable("agentserve is shutting down", code="shutting_down", retry_after=wait)

    def _check_queue(self, place: _Place) -> None:
        waiting = place.holders - 1
        limit = self.settings.max_queue_depth
        if waiting >= limit:
            raise QueueFull(
                f"{max(waiting, 0)} requests are waiting for this model already (max_queue_depth {limit})",
                retry_after(place.supervisor.wait_s),
            )

    async def _place_for(self, target: Target) -> _Place:
        place = self._places.get(target)
        if place is None or not place.is_loaded:
            # One at a time, or two models would take the last room.
            async with self._placing:
                place = self._places.get(target)
                if place is None or not place.is_loaded:
                    await self._make_room()
                    place = self._places.setdefault(target, _Place(self._supervisor(target)))
        return place

    async def _make_room(self) -> None:
        loaded = [
            Slot(target, place.holders, place.last_used, place.supervisor.wait_s)
            for target, place in self._places.items()
            if place.is_loaded
        ]
        victim = choose_victim(loaded, self.settings.max_loaded_models)
        if victim is not None:
            await self._places.pop(victim).supervisor.stop()

    def _device(self, target: Target) -> str:
        return MOCK_DEVICE if target.path is None else self.settings.device

    def _capsule_dir(self, target: Target) -> str | None:
        if self.capsules is None:
            return None
        return str(capsule_folder(self.capsules, target.name, self._device(target)))

    def _supervisor(self, target: Target) -> Supervisor:
        settings = self.settings
        load = LoadModel(
            name=target.name,
            model_path=None if target.path is None else str(target.path),
            device=self._device(target),
            threads=settings.threads,
            max_context=settings.max_context,
            kv_budget_bytes=settings.kv_budget,
            exact=settings.exact,
            minima=cast(Minima, settings.minima),
            strip_decorations=settings.strip_decorations,
            compile_cache_dir=None if self.compile_cache is None else str(self.compile_cache),
            reference_step_s=settings.reference_step,
            capsule_budget_bytes=settings.capsule_budget,
            capsule_dir=self._capsule_dir(target),
            capsule_disk_bytes=settings.capsule_disk,
            draft_tokens=settings.draft_tokens,
            max_draft_tokens=settings.max_draft_tokens,
            draft_model=target.draft_model,
            max_sessions=settings.max_active_sessions,
            max_prompt_tokens=settings.max_prompt_tokens,
            max_output_tokens=settings.max_output_tokens,
            queue_wait_s=settings.queue_wait,
            session_idle_s=settings.session_idle_ttl,
            tool_format=target.tool_format,
            reasoning_format=target.reasoning_format,
            embedding_cache_size=settings.embedding_cache_size,
        )
        return Supervisor(
            load, settings.load_timeout, self.command, lambda: self.on_change(), settings.stall_timeout
        )


def _reference(name: str) -> Target:
    if name.removesuffix(":latest") != REFERENCE:
        raise ModelNotFound(
            f"There is no model {name!r}: agentserve runs with mock and serves only {REFERENCE!r}",
            param="model",
        )
    return Target(REFERENCE, "", None)
