"""Turns whose replies keep their own tokens: what is reused, and that the answers are those of a fresh engine."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from agentserve.engine.config import EngineConfig
from agentserve.engine.gguf.source import open_gguf
from agentserve.engine.protocol import (
    CancelReason,
    GenerateRequest,
    LoadModel,
    Message,
    SamplingParams,
    Started,
)
from engine_rig import GREEDY, Rig
from hypothesis import given, settings
from hypothesis import strategies as st
from transcript_models import merging_backend

CONFIG = EngineConfig(context_length=2048, exact=True, min_chunk=32, first_chunk=64, max_chunk=64)
SYSTEM, QUESTION, NEXT = Message("system", "Be brief."), Message("user", "why?"), Message("user", "and then?")
TOOLS = '[{"type": "function", "function": {"name": "read"}}]'
Chat = tuple[Message, ...]


class Talk:
    """Requests to one engine; a namespace of its own makes any of them a cold one."""

    def __init__(self, rig: Rig) -> None:
        self.rig = rig
        self._asked = 0

    def ask(self, chat: Chat, **fields: object) -> Started:
        name = self.start(chat, **fields)
        self.rig.run()
        return self.started(name)

    def start(self, chat: Chat, **fields: object) -> str:
        self._asked += 1
        self.rig.submit(f"r{self._asked}", messages=chat, **fields)
        return f"r{self._asked}"

    def started(self, name: str) -> Started:
        (started,) = [e for e in self.rig.events if isinstance(e, Started) and e.request_id == name]
        return started

    @property
    def said(self) -> str:
        """The text of the last answer."""
        return self.rig.text(f"r{self._asked}")

    def with_answer(self, chat: Chat, *following: Message) -> Chat:
        return (*chat, Message("assistant", self.said), *following)

    def tokens(self, chat: Chat) -> tuple[int, ...]:
        return self.rig.prompter.prompt(GenerateRequest("", chat)).tokens

    def session(self, started: Started) -> tuple[int, ...]:
        """The tokens of the conversation that a request belonged to."""
        assert started.session_id is not None
        conversation = self.rig.engine.conversations.get("", started.session_id)
        assert conversation is not None
        return tuple(conversation.tokens.tolist())

    def cold(self, tokens: tuple[int, ...], **fields: object) -> str:
        self.ask((), prompt=tokens, namespace=f"cold {self._asked}", **fields)
        return self.said

    def spelled(self, tokens: tuple[int, ...]) -> str:
        return b"".join(map(self.rig.tokenizer.spelling, tokens)).decode()

    def rendered(self, chat: Chat) -> str:
        assert self.rig.prompter.template is not None
        return self.rig.prompter.template.render(chat)


def talk(endless: bool = True) -> Talk:
    return Talk(Rig(CONFIG, blocks=256, endless=endless, backend=merging_backend()))


def test_the_turn_after_an_end_of_turn_token_appends_to_its_tokens() -> None:
    """The separator behind that token is part of the session as well."""
    world = talk(endless=False)
    chat: Chat = (SYSTEM, QUESTION)
    world.ask(chat, max_new_tokens=400)
    assert world.rig.finished("r1").finish_reason == "stop"
    before = len(world.tokens(chat)) + world.rig.finished("r1").completion_tokens - 1
    following = world.with_answer(chat, NEXT)
    started = world.ask(following)
    assert (started.prefix_action, started.cached_tokens) == ("message_append", before)
    (conversation,) = world.rig.engine.conversations
    spelled = world.spelled(tuple(conversation.tokens.tolist()))
    assert spelled.startswith(world.rendered(following))


def test_the_turn_after_one_cut_by_its_length_appends_and_closes_it() -> None:
    world = talk()
    chat: Chat = (SYSTEM, QUESTION)
    world.ask(chat, max_new_tokens=30)
    before = len(world.tokens(chat)) + 30
    started = world.ask(world.with_answer(chat, NEXT))
    # The last token was sampled and never computed.
    assert (started.prefix_action, started.cached_tokens) == ("message_append", before - 1)


def test_an_aborted_turn_that_the_client_keeps_is_continued() -> None:
    world = talk()
    chat: Chat = (SYSTEM, QUESTION)
    name = world.start(chat, max_new_tokens=200)
    while len(world.rig.text(name)) < 40:
        world.rig.engine.step()
    world.rig.engine.cancel(name, CancelReason.CLIENT)
    world.rig.run()
    started = world.ask(world.with_answer(chat, NEXT))
    assert started.prefix_action == "message_append"
    assert started.cached_tokens >= len(world.tokens(chat)) + 39


@pytest.mark.parametrize(
    "change", [{"tools_json": TOOLS}, {"namespace": "other"}], ids=["tools", "namespace"]
)
def test_other_tools_or_another_namespace_never_append(change: dict[str, object]) -> None:
    world = talk()
    chat: Chat = (SYSTEM, QUESTION)
    world.ask(chat, max_new_tokens=30)
    assert world.ask(world.with_answer(chat, NEXT), **change).prefix_action == "rebuild"


def test_an_answer_that_the_client_replaced_costs_only_itself() -> None:
    world = talk()
    chat: Chat = (SYSTEM, QUESTION)
    world.ask(chat, max_new_tokens=40)
    replaced: Chat = (*chat, Message("assistant", "something else"), NEXT)
    started = world.ask(replaced, max_new_tokens=8)
    assert started.cached_tokens >= len(world.tokens(chat)) - 1
    assert world.spelled(world.session(started)).startswith(world.rendered(replaced))


def test_sampling_does_not_matter() -> None:
    world = talk()
    chat: Chat = (SYSTEM, QUESTION)
    world.ask(chat, max_new_tokens=30)
    other = SamplingParams(temperature=0.9, top_k=5, seed=3)
    assert world.ask(world.with_answer(chat, NEXT), sampling=other).prefix_action == "message_append"


def test_a_canonical_reply_is_a_plain_append() -> None:
    world = Talk(Rig(CONFIG, blocks=256))
    chat: Chat = (SYSTEM, QUESTION)
    world.ask(chat, max_new_tokens=30)
    assert world.ask(world.with_answer(chat, NEXT)).prefix_action == "append"


def test_a_retry_and_an_edit_reuse_the_own_tokens_before_them() -> None:
    world = talk()
    chat: Chat = (SYSTEM, QUESTION)
    world.ask(chat, max_new_tokens=40)
    following = world.with_answer(chat, NEXT)
    world.ask(following, max_new_tokens=10)
    retry = world.ask(following, max_new_tokens=10)
    edit = world.ask((*following[:-1], Message("user", "and now?")), max_new_tokens=10)
    assert [retry.prefix_action, edit.prefix_action] == ["truncate", "truncate"]
    assert min(retry.cached_tokens, edit.cached_tokens) >= len(world.tokens(chat)) + 39


MOVES = st.lists(
    st.tuples(
        st.sampled_from(["next", "retry", "edit", "undo"]),
        st.sampled_from(["go on", "list the files", "read the other file and say what it does"]),
        st.integers(1, 20),
    ),
    min_size=2,
    max_size=6,
)
Moves = list[tuple[str, str, int]]


def moved(chat: Chat, move: str, text: str) -> Chat:
    """The next prompt after a conversation that ends with an answer."""
    user = Message("user", text)
    if move == "undo" and len(chat) > 4:
        return (*chat[:-4], user)
    return {"retry": chat[:-1], "edit": (*chat[:-2], user)}.get(move, (*chat, user))


def play(world: Talk, moves: Moves, sampling: SamplingParams = GREEDY) -> set[str]:
    """Plays a conversation and compares each answer with a cold one; returns what the turns were called."""
    chat: Chat = (SYSTEM, QUESTION)
    world.ask(chat, max_new_tokens=12, sampling=sampling)
    chat, actions = world.with_answer(chat), set[str]()
    for move, text, length in moves:
        chat = moved(chat, move, text)
        tokens = world.tokens(chat)
        assert world.spelled(tokens) == world.rendered(chat)
        started = world.ask(chat, max_new_tokens=8)
        actions.add(started.prefix_action)
        assert world.session(started)[: len(tokens)] == tokens
        answer = world.said
        assert answer == world.cold(tokens, max_new_tokens=8), started
        world.ask(chat, max_new_tokens=length, sampling=sampling)
        chat = world.with_answer(chat)
    return actions


@settings(max_examples=15, deadline=None)
@given(MOVES)
def test_random_conversations_answer_as_a_cold_engine_does_on_the_same_tokens(
    moves: Moves,
) -> None:
    play(talk(), moves)


@pytest.mark.model
def test_random_conversations_of_smollm2_answer_as_a_cold_engine_does(smollm2: Path) -> None:
    from agentserve.engine.runners.loading import open_openvino

    source = open_gguf(smollm2)
    backend = open_openvino(source, LoadModel("smollm2", str(smollm2), exact=True), lambda stage: None)
    world = Talk(Rig(CONFIG, blocks=200, backend=backend))
    dice = random.Random(5)
    actions = set[str]()
    for _ in range(2):
        moves = [
            (dice.choice(["next", "next", "undo", "edit"]), dice.choice(["go on", "write code"]), 30)
            for _ in range(4)
        ]
        hot = SamplingParams(temperature=1.5, seed=dice.randrange(100))
        actions |= play(world, moves, hot)
    assert "message_append" in actions
