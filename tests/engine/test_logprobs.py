"""How likely tokens were is told with their text: all of it once, whatever holds the text back."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from agentserve.engine.config import DraftLimits, EngineConfig
from agentserve.engine.protocol import Constraint, LogprobsDelta, SamplingParams, TextDelta, TokenLogprob
from agentserve.engine.replies.logprobs import LogprobTrail, token_logprob
from agentserve.engine.runners.reference_model import byte_tokenizer
from engine_rig import GREEDY, Rig

TOKENIZER = byte_tokenizer()
SIZE = TOKENIZER.vocab_size
# Greedy, and no end of turn before the limit.
TALKATIVE = replace(GREEDY, logit_bias=tuple((token, -100.0) for token in sorted(TOKENIZER.control_ids)))
LOGITS = np.random.default_rng(3).normal(size=SIZE).astype(np.float32) * 4


def told(rig: Rig) -> list[TokenLogprob]:
    return [token for event in rig.events if isinstance(event, LogprobsDelta) for token in event.tokens]


def reply(drafts: int = 0, **fields: object) -> Rig:
    rig = Rig(EngineConfig(1024, exact=True, draft_limits=DraftLimits(drafts, drafts)))
    rig.submit(**{"logprobs": 2, "sampling": TALKATIVE, **fields})
    rig.run()
    return rig


def trail_of(text: str, *stops: str) -> tuple[list[str], str]:
    """What a trail tells with each token of a text, and at its end."""
    trail = LogprobTrail(TOKENIZER, stops, 0)
    steps = []
    for token in TOKENIZER.encode(text):
        trail.push(token, LOGITS)
        steps.append(spelled(trail.take()))
    return steps, spelled(trail.finish())


def spelled(tokens: tuple[TokenLogprob, ...]) -> str:
    return b"".join(token.text for token in tokens).decode()


def test_probabilities_are_those_of_a_softmax_over_the_whole_vocabulary() -> None:
    found = token_logprob(TOKENIZER, 65, LOGITS, 20)
    expected = np.log(np.exp(LOGITS.astype(np.float64)) / np.exp(LOGITS.astype(np.float64)).sum())
    assert found.logprob == pytest.approx(expected[65])
    assert [value for _, value in found.top] == pytest.approx(sorted(expected, reverse=True)[:20])
    assert found.top[0][0] == TOKENIZER.spelling(int(LOGITS.argmax()))
    everything = token_logprob(TOKENIZER, 65, LOGITS, SIZE)
    assert sum(math.exp(value) for _, value in everything.top) == pytest.approx(1)


def test_every_token_of_a_reply_is_told_once_and_before_its_text() -> None:
    rig = reply()
    assert spelled(tuple(told(rig))) == rig.text()
    assert all(len(token.top) == 2 for token in told(rig))
    kinds = [type(event) for event in rig.events if isinstance(event, LogprobsDelta | TextDelta)]
    assert kinds == [LogprobsDelta, TextDelta] * (len(kinds) // 2)


def test_greedy_tokens_are_the_likeliest() -> None:
    assert all(token.top[0] == (token.text, token.logprob) for token in told(reply(sampling=GREEDY)))


def test_nothing_is_told_to_who_does_not_ask() -> None:
    assert told(reply(logprobs=None)) == []


def test_drafts_change_nothing() -> None:
    sampling = SamplingParams(temperature=0.8, seed=2)
    plain, drafted = (reply(most, sampling=sampling, max_new_tokens=60) for most in (0, 8))
    assert [token.text for token in told(plain)] == [token.text for token in told(drafted)]
    assert [t.logprob for t in told(plain)] == pytest.approx([t.logprob for t in told(drafted)])


def test_penalties_biases_and_grammars_do_not_change_what_the_model_thinks() -> None:
    plain = told(reply(sampling=GREEDY))[0]
    forced = told(reply(constraint=Constraint("regex", "!{3}", "p"), sampling=GREEDY))[0]
    assert forced.text == b"!"
    assert forced.top == plain.top
    assert forced.logprob < plain.logprob


def test_the_token_that_ends_the_turn_is_not_told() -> None:
    rig = Rig()
    rig.submit(constraint=Constraint("regex", "a{0,3}", "p"), logprobs=0, sampling=SamplingParams(seed=1))
    rig.run()
    assert spelled(tuple(told(rig))) == rig.text()


def test_tokens_wait_for_their_text() -> None:
    assert trail_of("abc") == (["a", "b", "c"], "")
    assert trail_of("aé日") == (["a", "", "é", "", "", "日"], "")
    assert trail_of("aSTOx", "STOP") == (["a", "", "", "", "STOx"], "")
    assert trail_of("aSTO", "STOP") == (["a", "", "", ""], "STO")


def test_tokens_of_a_stop_string_are_never_told() -> None:
    assert trail_of("aSTOP", "STOP") == (["a", "", "", "", ""], "")
    text = reply(max_new_tokens=60).text()
    stop = text[30:33]
    rig = reply(max_new_tokens=60, stop=(stop,))
    assert rig.finished().stop_string == stop
    assert spelled(tuple(told(rig))) == rig.text() == text[: text.index(stop)]


def test_half_a_character_at_the_end_is_told() -> None:
    trail = LogprobTrail(TOKENIZER, (), 0)
    trail.push(TOKENIZER.encode("é")[0], LOGITS)
    assert trail.take() == ()
    assert [token.text for token in trail.finish()] == ["é".encode()[:1]]
