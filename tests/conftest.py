"""Fixtures that several folders share."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

MODEL_NAME = "smollm2"


@pytest.fixture(scope="session")
def smollm2() -> Path:
    """The SmolLM2 file, from the store that AGENTSERVE_MODELS names; scripts/test pulls it there."""
    from agentserve.daemon.errors import StoreError
    from agentserve.daemon.registry import ModelStore

    root = os.environ.get("AGENTSERVE_MODELS")
    if not root:
        pytest.skip("AGENTSERVE_MODELS names no model store")
    try:
        return ModelStore(Path(root)).resolve(MODEL_NAME).path
    except StoreError:
        pytest.skip(f"{MODEL_NAME} is not in the store; scripts/test pulls it")
