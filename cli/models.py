"""pull, list, show and rm: the model store."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated

import typer

from ..daemon.paths import Paths, resolve_paths
from ..daemon.store.model_files import remove_traces
from ..daemon.store.registry import ModelStore, StoredModel, UnknownModel, capabilities, size_text
from . import output
from .diagnostics import say
from .progress import progress
from .serve import running_client
from .status import duration_text

ModelArgument = Annotated[str, typer.Argument(metavar="MODEL", help="Name or alias, as `list` shows it.")]
JsonOption = Annotated[bool, typer.Option("--json", help="All of it as JSON.")]


def pull(
    source: Annotated[
        str, typer.Argument(metavar="SOURCE", help="A catalogue name such as smollm2, or file:PATH.")
    ],
    name: Annotated[str | None, typer.Option("--name", help="Name for a file: NAME or NAME:TAG.")] = None,
) -> None:
    """Bring a model into the store; goes on where an interrupted pull stopped."""
    if name is not None and not source.startswith("file:"):
        raise typer.BadParameter(
            "only a file can be named; catalogue models have their names", param_hint="--name"
        )
    store = _store()
    before = _stored(store, source)
    try:
        model = _pull_shown(source, store, name)
    except KeyboardInterrupt:
        say(f"Interrupted; `agentserve pull {source}` goes on from here")
        raise
    state = "is already here" if before == model else f"is ready ({size_text(model.size)})"
    say(f"{model.name} {state}")


def list_models(json: JsonOption = False) -> None:
    """List the models of the store."""
    models = _store().list()
    if json:
        output.json([_as_json(model) for model in models])
    elif not models:
        say("No models yet; `agentserve pull smollm2` gets one")
    else:
        heads = ("NAME", "ALIASES", "CAPABILITIES", "SIZE", "QUANTIZATION", "CONTEXT", "AGE")
        spare = ("ALIASES", "AGE", "CAPABILITIES", "CONTEXT", "QUANTIZATION")
        output.table(heads, (_row(model) for model in models), spare)


def show(model: ModelArgument, json: JsonOption = False) -> None:
    """Show what a model is and how it will be kept in memory."""
    stored = _store().resolve(model)
    if json:
        output.json(_as_json(stored))
    else:
        output.facts(_facts(stored))


def remove(model: ModelArgument) -> None:
    """Remove a model and what was kept for it; its file goes when no other name has it."""
    paths = resolve_paths()
    removed = _store().remove(model)
    traces = remove_traces(paths, removed)
    also = f", and {size_text(traces)} of prefixes and graphs" if traces else ""
    say(f"{removed.name} was removed, {_freed_text(removed.freed)}{also}")
    if _is_loaded(paths, removed.name):
        say(f"{removed.name} is still loaded and keeps its memory until `agentserve down`")


def _is_loaded(paths: Paths, name: str) -> bool:
    client = running_client(paths)
    workers = client.status().workers if client is not None else ()
    return any(worker.name == name and worker.state in ("starting", "ready") for worker in workers)


def _freed_text(freed: int | None) -> str:
    if freed is None:
        return "its file stays under another name"
    return f"{size_text(freed)} freed" if freed else "its file was gone already"


def _store() -> ModelStore:
    return ModelStore(resolve_paths().models)


def _stored(store: ModelStore, source: str) -> StoredModel | None:
    if source.startswith("file:"):
        return None
    try:
        return store.resolve(source)
    except UnknownModel:
        return None


def _pull_shown(source: str, store: ModelStore, name: str | None) -> StoredModel:
    from ..daemon.store.pull import PullProgress
    from ..daemon.store.pull import pull as bring

    what = Path(source).name if source.startswith("file:") else source
    with progress() as report:

        def show_step(step: PullProgress) -> None:
            report(f"{what}: {step.stage.value}", step.done, step.total)

        return bring(source, store, show_step, name=name)


def _row(model: StoredModel) -> tuple[str, ...]:
    age = duration_text(time.time() - model.created)
    quantization, context = (str(model.info.get(key, "?")) for key in ("quantization", "context_length"))
    names, can_do = ", ".join(model.aliases), ", ".join(capabilities(model))
    return (model.name, names, can_do, size_text(model.size), quantization, context, age)


def _as_json(model: StoredModel) -> Mapping[str, object]:
    return {
        "name": model.name,
        "aliases": model.aliases,
        "digest": model.digest,
        "size": model.size,
        "created": model.created,
        "path": str(model.path),
        "info": model.info,
    }


def _facts(model: StoredModel) -> Iterator[tuple[str, str]]:
    yield "name", model.name
    if model.aliases:
        yield "aliases", ", ".join(model.aliases)
    yield "size", size_text(model.size)
    yield "digest", model.digest
    yield "file", str(model.path)
    for key, value in model.info.items():
        label, entries = _described(key, value)
        for entry in entries:
            yield label, entry
            label = ""


def _described(key: str, value: object) -> tuple[str, list[str]]:
    """Label and lines of one entry of the engine's description; none for an entry that says nothing."""
    match key, value:
        case "name", str():
            return "title", [value]
        case "parameters", int():
            return key, [f"{value / 1e6:.1f} M"]
        case "tensor_types", dict():
            return "in the file", [f"{kind}: {_tensors_text(entry)}" for kind, entry in value.items()]
        case "schemes", dict():
            return "in memory", [f"{kind}: {scheme}" for kind, scheme in value.items()]
        case _, bool():
            return key.replace("_", " "), ["yes" if value else "no"]
        case _, list():
            return key, [str(entry) for entry in value]
        case _:
            return key.replace("_", " "), [] if value is None else [str(value)]


def _tensors_text(entry: Mapping[str, int]) -> str:
    count = entry["count"]
    return f"{count} tensor{'s' if count != 1 else ''}, {size_text(entry['bytes'])}"
