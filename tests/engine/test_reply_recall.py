"""After a restart replies keep their tokens as well, as far as the tokens of the conversation are still there."""

from __future__ import annotations

from pathlib import Path

from agentserve.engine.config import EngineConfig
from agentserve.engine.protocol import Message
from agentserve.engine.replies.memory import ReplyMemory
from agentserve.engine.replies.recall import recall_replies, recent_conversations
from capsule_rig import CapsuleRig
from transcript_desk import NEXT, QUESTION, REPLY, SYSTEM, Desk, assistant
from transcript_models import merging_backend


def restarted(tokens: tuple[int, ...], namespace: str = "") -> Desk:
    """A desk that knows nothing but the tokens of a conversation."""
    desk = Desk()
    recall_replies(desk.tokenizer, desk.prompter.replies, namespace, tokens)
    return desk


def two_turns() -> tuple[int, ...]:
    """Tokens of two replies, with a question behind them."""
    desk = Desk()
    desk.reply(REPLY, SYSTEM, QUESTION)
    desk.reply("the other dog", SYSTEM, QUESTION, assistant(REPLY), NEXT)
    return desk.prompt(SYSTEM, QUESTION, assistant(REPLY), NEXT, assistant("the other dog"), QUESTION).tokens


MESSAGES = (SYSTEM, QUESTION, assistant(REPLY), NEXT, assistant("the other dog"), QUESTION)


def test_every_reply_of_a_conversation_is_learned_from_its_tokens() -> None:
    tokens = two_turns()
    desk = restarted(tokens)
    assert Desk().prompt(*MESSAGES).tokens != tokens
    assert desk.prompt(*MESSAGES).tokens == tokens
    assert len(desk.prompter.replies) == 2


def test_a_learned_reply_is_not_found_elsewhere() -> None:
    desk = restarted(two_turns())
    for messages in (MESSAGES[1:], (SYSTEM, NEXT, *MESSAGES[2:])):
        assert desk.prompt(*messages).canonical is None
    assert desk.prompt(*MESSAGES, namespace="other").canonical is None
    changed = (SYSTEM, QUESTION, assistant(REPLY + "s"), *MESSAGES[3:])
    assert desk.prompt(*changed).canonical is None


def test_a_conversation_goes_on_with_new_replies_behind_learned_ones() -> None:
    desk = restarted(two_turns())
    known = desk.reply("then the rain", *MESSAGES)
    assert desk.prompt(*MESSAGES, assistant("then the rain"), NEXT).tokens[: len(known)] == known


def test_canonical_conversations_teach_nothing() -> None:
    memory, desk = ReplyMemory(), Desk()
    recall_replies(desk.tokenizer, memory, "", desk.prompt(*MESSAGES).tokens)
    assert len(memory) == 0


def rig(folder: Path) -> CapsuleRig:
    """An engine over the folder, with what a worker learns when it starts."""
    config = EngineConfig(context_length=2048, exact=True)
    started = CapsuleRig(config, blocks=200, backend=merging_backend(), folder=folder)
    store = started.engine.capsules
    assert store is not None
    assert store.disk is not None
    for namespace, tokens in recent_conversations(store.disk):
        recall_replies(started.tokenizer, started.prompter.replies, namespace, tokens)
    return started


def test_the_turn_after_a_restart_restores_the_own_tokens_of_all_replies(tmp_path: Path) -> None:
    before = rig(tmp_path)
    messages: tuple[Message, ...] = (Message("system", "Be brief. " * 20), QUESTION)
    for name in ("a", "b"):
        before.ask(name, messages, max_new_tokens=200)
        messages = (*messages, assistant(before.text(name)), NEXT)
    end = before.finished("b")
    assert end.finish_reason == "stop"
    before.engine.capsules.close()
    after = rig(tmp_path)
    started = after.ask("c", messages, max_new_tokens=4)
    assert started.prefix_action == "restore"
    assert started.cached_tokens >= end.prompt_tokens + end.completion_tokens - 1
