"""Sessions on the real model, which has no recurrent state: a cut is exact to the token."""

from __future__ import annotations

from pathlib import Path

import pytest
from agentserve.engine.config import EngineConfig
from agentserve.engine.gguf.source import open_gguf
from agentserve.engine.messages.sessions import ForkSession, TruncateSession
from agentserve.engine.protocol import LoadModel, Message, Started
from agentserve.engine.runners.loading import open_openvino
from engine_rig import Rig

pytestmark = pytest.mark.model
QUESTION = "Which prefix of this question is computed again, and which is not? " * 8


@pytest.fixture(scope="module")
def engine(smollm2: Path) -> Rig:
    spec = LoadModel("smollm2", str(smollm2), threads=2, exact=True)
    backend = open_openvino(open_gguf(str(smollm2)), spec, lambda stage: None)
    return Rig(EngineConfig(context_length=1024, exact=True), blocks=200, endless=True, backend=backend)


def ask(engine: Rig, name: str, prompt: tuple[int, ...], **fields: object) -> Started:
    return engine.ask(name, (), prompt=prompt, max_new_tokens=10, **fields)


def test_cut_and_forked_sessions_go_on_as_a_cold_engine_would(engine: Rig) -> None:
    prompt = tuple(engine.tokenizer.encode(QUESTION))
    ask(engine, "a", prompt, session_id="trunk")
    engine.engine.ask(ForkSession("f", "trunk", new_id="branch"))
    engine.engine.ask(TruncateSession("t", "trunk", tokens=77))
    longer = (*prompt, *engine.tokenizer.encode(" Say it"))
    edited = (*prompt[:77], *engine.tokenizer.encode(" Or say nothing"))
    cut = ask(engine, "b", edited, session_id="trunk")
    branch = ask(engine, "c", longer, session_id="branch")
    assert (cut.prefix_action, cut.cached_tokens, cut.cache_miss_reason) == ("append", 77, None)
    assert (branch.prefix_action, branch.cached_tokens) == ("truncate", len(prompt))
    # In a namespace of its own nothing is known.
    for name, warm, text in (("cold b", "b", edited), ("cold c", "c", longer)):
        assert ask(engine, name, text, namespace=name).cached_tokens == 0
        assert engine.text(name) == engine.text(warm)


def test_a_difference_is_shown_in_the_text_of_both(engine: Rig) -> None:
    for name, question in (("x", "Where is the café?"), ("y", "Where is the zoo?")):
        engine.submit(name, messages=(Message("user", question),), max_new_tokens=4, explain=True)
        engine.run()
    (difference,) = [e.difference for e in engine.events if isinstance(e, Started) and e.request_id == "y"]
    assert difference is not None
    assert difference.shared.endswith("<|im_start|>user\nWhere is the")
    assert difference.known.startswith(" café?<|im_end|>\n<|im_start|>assistant\n")
    assert difference.prompt == " zoo?<|im_end|>\n<|im_start|>assistant\n"
