"""Replies keep the tokens they were generated as, wherever a client sends them back, and never anywhere else."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from agentserve.engine.gguf.source import open_gguf
from agentserve.engine.prompts.prompting import Prompter
from agentserve.engine.prompts.templates import ChatTemplate
from agentserve.engine.protocol import GenerateRequest, Message, SamplingParams
from agentserve.engine.text.tokenise import read_tokenizer
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny_models import write_tiny_gguf
from transcript_desk import NEXT, QUESTION, REPLY, SYSTEM, TOOLS, Desk, assistant
from transcript_models import (
    CHATML,
    THINKING,
    TRIMMING,
    TemplateKind,
    letters,
    merging_tokenizer,
)


def test_letters_are_not_what_the_tokenizer_would_give() -> None:
    tokenizer = merging_tokenizer(CHATML)
    assert len(tokenizer.encode(REPLY)) < len(letters(tokenizer, REPLY))


def test_a_reply_that_comes_back_keeps_its_own_tokens() -> None:
    desk = Desk()
    known = desk.reply(REPLY, SYSTEM, QUESTION)
    prompt = desk.prompt(SYSTEM, QUESTION, assistant(REPLY), NEXT)
    assert prompt.tokens[: len(known)] == known
    assert desk.spelled(prompt.tokens) == desk.rendered(SYSTEM, QUESTION, assistant(REPLY), NEXT)
    assert prompt.canonical is not None
    assert prompt.canonical < len(known)


def test_all_replies_of_a_conversation_keep_their_tokens() -> None:
    desk, messages = Desk(), [SYSTEM, QUESTION]
    for turn in range(4):
        known = desk.reply(f"{REPLY} {turn}", *messages)
        messages += [assistant(f"{REPLY} {turn}"), NEXT]
        assert desk.prompt(*messages).tokens[: len(known)] == known
    assert desk.spelled(desk.prompt(*messages).tokens) == desk.rendered(*messages)


def test_a_reply_in_canonical_tokens_differs_nowhere() -> None:
    desk = Desk()
    desk.reply(REPLY, QUESTION, tokens=tuple(desk.tokenizer.encode(REPLY)))
    assert desk.prompt(QUESTION, assistant(REPLY), NEXT).canonical is None


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ({}, {"tools_json": TOOLS}),
        ({"tools_json": TOOLS}, {"tools_json": TOOLS.replace("read", "write")}),
        ({"namespace": "alice"}, {"namespace": "bob"}),
    ],
    ids=["tools appear", "tools change", "another namespace"],
)
def test_a_reply_given_under_other_conditions_is_not_taken(
    first: dict[str, str], second: dict[str, str]
) -> None:
    desk = Desk()
    desk.reply(REPLY, QUESTION, **first)
    messages = (QUESTION, assistant(REPLY), NEXT)
    assert desk.prompt(*messages, **first).canonical is not None
    assert desk.prompt(*messages, **second).canonical is None


@pytest.mark.parametrize(
    "messages",
    [
        (QUESTION, assistant(REPLY + "s"), NEXT),
        (QUESTION, assistant(REPLY + " and more"), NEXT),
        (QUESTION, assistant(REPLY[:-1]), NEXT),
        (QUESTION, assistant(REPLY.replace("quick", "quiet")), NEXT),
        (Message("user", "why not?"), assistant(REPLY), NEXT),
        (Message("user", REPLY), NEXT),
        (SYSTEM, QUESTION, assistant(REPLY), NEXT),
    ],
)
def test_another_text_or_place_is_not_taken_for_the_reply(messages: tuple[Message, ...]) -> None:
    desk = Desk()
    desk.reply(REPLY, QUESTION)
    prompt = desk.prompt(*messages)
    assert prompt.canonical is None
    assert desk.spelled(prompt.tokens) == desk.rendered(*messages)


def test_of_two_replies_to_one_prompt_each_is_found_by_its_text() -> None:
    desk = Desk()
    for text in (REPLY, "there is no other way"):
        desk.reply(text, QUESTION)
    for text in (REPLY, "there is no other way"):
        assert letters(desk.tokenizer, text)[5] in desk.prompt(QUESTION, assistant(text), NEXT).tokens
        assert desk.prompt(QUESTION, assistant(text), NEXT).canonical is not None


def test_a_reply_cut_by_its_length_is_followed_by_the_end_of_its_turn() -> None:
    desk = Desk()
    known = desk.reply(REPLY[:11], QUESTION, ends=False)
    prompt = desk.prompt(QUESTION, assistant(REPLY[:11]), NEXT)
    assert prompt.tokens[: len(known)] == known
    end = desk.tokenizer.id_of("<|im_end|>")
    assert prompt.tokens[len(known)] == end
    assert desk.spelled(prompt.tokens[len(known) :]).startswith("<|im_end|>\n<|im_start|>user\n")


def test_a_reply_cut_at_a_stop_string_keeps_the_tokens_before_it() -> None:
    desk = Desk()
    known = desk.reply("the fox STOP", QUESTION, ends=False, stop_string="STOP")
    prompt = desk.prompt(QUESTION, assistant("the fox "), NEXT)
    assert prompt.tokens[: len(known) - len("STOP")] == known[: -len("STOP")]
    assert desk.spelled(prompt.tokens) == desk.rendered(QUESTION, assistant("the fox "), NEXT)


def test_a_token_that_a_stop_string_cuts_in_two_is_tokenised_anew() -> None:
    desk = Desk()
    whole = desk.tokenizer.encode("the")
    assert len(whole) == 1
    known = desk.reply(
        "", QUESTION, ends=False, stop_string="he", tokens=(*letters(desk.tokenizer, "fox "), *whole)
    )
    prompt = desk.prompt(QUESTION, assistant("fox t"), NEXT)
    assert prompt.tokens[: len(known) - 1] == known[:-1]
    assert desk.spelled(prompt.tokens) == desk.rendered(QUESTION, assistant("fox t"), NEXT)


def test_an_empty_reply_is_no_special_case() -> None:
    desk = Desk()
    known = desk.reply("", QUESTION)
    for content in ("", None):
        assert desk.prompt(QUESTION, assistant(content), NEXT).tokens[: len(known)] == known


def test_white_space_that_a_template_trims_at_the_end_costs_only_itself() -> None:
    desk = Desk(TRIMMING)
    known = desk.reply(REPLY + " \n\n", QUESTION)
    for content in (REPLY + " \n\n", REPLY):
        prompt = desk.prompt(QUESTION, assistant(content), NEXT)
        assert prompt.tokens[: len(known) - 3] == known[:-3]
        assert desk.spelled(prompt.tokens) == desk.rendered(QUESTION, assistant(content), NEXT)


def test_white_space_trimmed_at_the_beginning_is_an_honest_miss() -> None:
    desk = Desk(TRIMMING)
    desk.reply("\n" + REPLY, QUESTION)
    prompt = desk.prompt(QUESTION, assistant("\n" + REPLY), NEXT)
    assert prompt.canonical is None
    assert desk.spelled(prompt.tokens) == desk.rendered(QUESTION, assistant("\n" + REPLY), NEXT)


def test_bytes_that_are_no_text_are_not_taken_for_the_character_that_stands_for_them() -> None:
    desk = Desk()
    broken = (*letters(desk.tokenizer, "fox "), letters(desk.tokenizer, "é")[0])
    known = desk.reply("", QUESTION, ends=False, tokens=broken)
    prompt = desk.prompt(QUESTION, assistant("fox \ufffd"), NEXT)
    assert prompt.tokens[: len(known) - 1] == known[:-1]
    assert desk.spelled(prompt.tokens) == desk.rendered(QUESTION, assistant("fox \ufffd"), NEXT)


def test_a_cut_never_parts_a_character() -> None:
    """Two kinds of white space whose first bytes are the same."""
    desk = Desk()
    known = desk.reply("fox\u2002", QUESTION)
    messages = (QUESTION, assistant("fox\u2003"), NEXT)
    prompt = desk.prompt(*messages)
    assert prompt.tokens[: len(known) - 3] == known[:-3]
    assert desk.spelled(prompt.tokens) == desk.rendered(*messages)


def test_a_reply_that_holds_the_place_of_another_one_is_taken_as_a_whole() -> None:
    desk = Desk()
    whole = "fox<|im_end|>\n<|im_start|>user\nwhy?<|im_end|>\n<|im_start|>assistant\nthe dog"
    known = desk.reply(whole, QUESTION)
    desk.reply("the dog", QUESTION, assistant("fox"), QUESTION)
    messages = (QUESTION, assistant(whole), NEXT)
    prompt = desk.prompt(*messages)
    assert prompt.tokens[: len(known)] == known
    assert desk.spelled(prompt.tokens) == desk.rendered(*messages)


def test_a_control_token_within_a_reply_is_kept_only_where_the_text_spells_it() -> None:
    desk = Desk()
    control = desk.tokenizer.id_of("<|im_start|>")
    assert control is not None
    own = (*letters(desk.tokenizer, "fox"), control, *letters(desk.tokenizer, "dog"))
    known = desk.reply("", QUESTION, tokens=own)
    assert desk.prompt(QUESTION, assistant("fox<|im_start|>dog"), NEXT).tokens[: len(known)] == known
    assert desk.prompt(QUESTION, assistant("foxdog"), NEXT).canonical is None


WORDS = st.text(st.sampled_from('the oqué日 \n{}"<|>'), min_size=1, max_size=30)
DRAFTS = st.lists(st.tuples(WORDS, st.randoms(use_true_random=False)), min_size=1, max_size=4)


def drafted(desk: Desk, text: str, dice: random.Random) -> tuple[int, ...]:
    """The text in tokens of random pieces of it, which may part characters, words and merges anywhere."""
    raw, tokens = letters(desk.tokenizer, text), list[int]()
    pairs = {desk.tokenizer.spelling(token): token for token in desk.tokenizer.encode(text)}
    while raw:
        size = dice.choice([1, 2, 3])
        piece = b"".join(map(desk.tokenizer.spelling, raw[:size]))
        tokens, raw = (
            ([*tokens, pairs[piece]], raw[size:]) if piece in pairs else ([*tokens, raw[0]], raw[1:])
        )
    return tuple(tokens)


@pytest.mark.parametrize("kind", [CHATML, TRIMMING, THINKING], ids=["chatml", "trimming", "thinking"])
@settings(max_examples=60, deadline=None)
@given(drafts=DRAFTS, changed=st.booleans())
def test_tokens_always_spell_what_was_rendered(
    kind: TemplateKind, drafts: list[tuple[str, random.Random]], changed: bool
) -> None:
    """Whatever was generated, in whatever tokens, and whether or not the client sends it back as it was."""
    desk, messages = Desk(kind), [SYSTEM, QUESTION]
    for text, dice in drafts:
        known = desk.reply("", *messages, tokens=drafted(desk, text, dice))
        sent = text[:-1] if changed and dice.random() < 0.5 else text
        messages += [assistant(sent), NEXT]
        prompt = desk.prompt(*messages)
        assert desk.spelled(prompt.tokens) == desk.rendered(*messages)
        if kind is CHATML and sent == text:
            assert prompt.tokens[: len(known)] == known


def test_positions_count_the_tokens_that_a_prompt_really_has() -> None:
    desk = Desk()
    desk.reply(REPLY, SYSTEM, QUESTION)
    prompt = desk.prompt(SYSTEM, QUESTION, assistant(REPLY), NEXT)
    assert desk.spelled(prompt.tokens[: prompt.stable]) == "<|im_start|>system\nBe brief.<|im_end|>\n"
    assert desk.spelled(prompt.tokens[prompt.turn_start :]).startswith("<|im_start|>user\nand then?")


SPACED = "<s>{% for m in messages %}{% if m.role == 'user' %}[INST] {{ m.content }} [/INST]{% else %}{{ m.content }}</s>{% endif %}{% endfor %}"


def test_a_sentence_piece_reply_keeps_its_tokens_too(tmp_path: Path) -> None:
    tokenizer = read_tokenizer(open_gguf(write_tiny_gguf(tmp_path / "a.gguf", tokenizer="llama").path))
    prompter = Prompter(tokenizer, ChatTemplate(SPACED, {}), SamplingParams(), 4096)
    first = prompter.prompt(GenerateRequest("r", (QUESTION,)))
    own = [tokenizer.id_of(piece) for piece in "▁the▁other"]
    assert None not in own
    assert first.origin is not None
    first.origin.remember([*own, *tokenizer.eos_ids], None)  # type: ignore[list-item]
    messages = (QUESTION, assistant(tokenizer.decode(own)), NEXT)  # type: ignore[arg-type]
    second = prompter.prompt(GenerateRequest("r", messages))
    assert second.tokens[: len(first.tokens) + len(own)] == (*first.tokens, *own)
    plain = Prompter(tokenizer, ChatTemplate(SPACED, {}), SamplingParams(), 4096)
    assert tokenizer.decode(second.tokens) == tokenizer.decode(
        plain.prompt(GenerateRequest("r", messages)).tokens
    )
