"""A tiny encoder in a model store, as `agentserve pull` would put it there."""

from __future__ import annotations

import hashlib
from pathlib import Path

from agentserve.daemon.store.registry import Arrived, ModelStore
from agentserve.engine.encoders.source import open_encoder
from agentserve.engine.inspect import describe_encoder


def put_encoder(store: ModelStore, file: Path, name: str, *aliases: str) -> None:
    """Stores the encoder of a GGUF file under a name and its aliases."""
    content = file.read_bytes()
    digest = hashlib.sha256(content).hexdigest()
    with store.arrival(digest):
        staged = store.staging(digest)
        staged.write_bytes(content)
        store.add(staged, Arrived(name, digest, "a test", describe_encoder(open_encoder(file)), aliases))
