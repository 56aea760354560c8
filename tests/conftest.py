"""Fixtures that several folders share."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

MODEL_NAME = "smollm2"
EMBEDDING_MODEL_NAME = "all-minilm"


@pytest.fixture(scope="session")
def smollm2() -> Path:
    """The SmolLM2 file, from the store that AGENTSERVE_MODELS names; scripts/test pulls it there."""
    return stored(MODEL_NAME)


@pytest.fixture(scope="session")
def all_minilm() -> Path:
    """The file of all-MiniLM-L6-v2, from the same store."""
    return stored(EMBEDDING_MODEL_NAME)


def stored(name: str) -> Path:
    """The file of a model in that store; skips the test where it is not there."""
    from agentserve.daemon.errors import StoreError
    from agentserve.daemon.store.registry import ModelStore

    root = os.environ.get("AGENTSERVE_MODELS")
    if not root:
        pytest.skip("AGENTSERVE_MODELS names no model store")
    try:
        return ModelStore(Path(root)).resolve(name).path
    except StoreError:
        pytest.skip(f"{name} is not in the store; scripts/test pulls it")
