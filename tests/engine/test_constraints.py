"""A constrained reply is a text of its language, whole, and the same whatever is drafted."""

from __future__ import annotations

import json
import random
import re
from dataclasses import replace

import pytest
from agentserve.engine.config import DraftLimits, EngineConfig
from agentserve.engine.constraints.desk import Constraints
from agentserve.engine.constraints.gate import GatedGrammar, reasoning_tokens
from agentserve.engine.constraints.state import BrokenConstraint, ReplyGrammar
from agentserve.engine.gguf.source import open_gguf
from agentserve.engine.messages.constraint import ConstraintKind
from agentserve.engine.prompts.prompting import PromptError
from agentserve.engine.protocol import CancelReason, Constraint, GenerateRequest, Message, SamplingParams
from agentserve.engine.replies.formats import ReplyFormats
from agentserve.engine.replies.reasoning import REASONING_FORMATS
from agentserve.engine.text.tokenise import Tokenizer, read_tokenizer
from engine_rig import GREEDY, Rig
from grammar_rig import TOKENIZER, allowed, grammar_of, schema, write
from jsonschema import Draft202012Validator
from random_schemas import random_schema
from tiny_models import write_tiny_gguf

FORM = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 9}, "kind": {"enum": ["red", "green"]}},
    "required": ["name", "kind"],
    "additionalProperties": False,
}
SEEDED = SamplingParams(temperature=1.0, seed=11, frequency_penalty=0.4, repetition_penalty=1.1)
THINK = next(form for form in REASONING_FORMATS if form.name == "think")


def reply(constraint: Constraint, drafts: int = 0, **fields: object) -> Rig:
    rig = Rig(EngineConfig(1024, exact=True, draft_limits=DraftLimits(drafts, drafts)))
    rig.submit(constraint=constraint, **{"max_new_tokens": 600, **fields})
    rig.run()
    return rig


@pytest.mark.parametrize("number", range(16))
def test_random_schemas_are_kept_and_drafts_change_nothing(number: int) -> None:
    wanted = random_schema(random.Random(number), depth=2)
    sampling = replace(SEEDED, seed=number)
    plain = reply(schema(wanted), sampling=sampling)
    assert plain.finished().finish_reason == "stop"
    validator = Draft202012Validator(wanted, format_checker=Draft202012Validator.FORMAT_CHECKER)
    validator.validate(json.loads(plain.text()))
    for most in (4, 16):
        assert reply(schema(wanted), most, sampling=sampling).text() == plain.text()


def test_a_greedy_reply_is_the_same_with_and_without_drafts() -> None:
    texts = {reply(schema(FORM), most, sampling=GREEDY).text() for most in (0, 4, 16)}
    assert len(texts) == 1


def test_forced_tokens_are_drafts_that_are_always_right() -> None:
    rig = reply(schema({"const": "a text that leaves no choice at all"}), 16)
    drafts = rig.finished().drafts
    assert [counts.drafter for counts in drafts.drafters] == ["grammar"]
    # The last token of a reply counts as the model's own.
    assert drafts.accepted == drafts.drafted - 1 > 20
    assert drafts.steps < len(rig.text()) / 2


def test_drafts_from_history_end_where_the_grammar_forbids_them() -> None:
    """The prompt holds the beginning of the answer with another end, which is no text of the language."""
    constraint = Constraint("regex", "(abcdefgh[0-3])+z", "guided_regex")
    rig = reply(constraint, 16, text="abcdefgh3abcdefgh2abcdefgh!", sampling=SEEDED, max_new_tokens=200)
    assert re.fullmatch(constraint.source, rig.text() + "z" * (rig.finished().finish_reason == "length"))
    assert "!" not in rig.text()


@pytest.mark.parametrize(
    ("kind", "source", "pattern"),
    [
        ("regex", r"[0-9]{3}-[a-f]{4}", r"[0-9]{3}-[a-f]{4}"),
        ("regex", "^(yes|no)$", "yes|no"),
        ("lark", 'start: "(" start ")" | "x"', r"\(*x\)*"),
        ("lark", 'start: word ("," word)~2\nword: /[a-z]{2}/', "[a-z]{2},[a-z]{2},[a-z]{2}"),
    ],
)
def test_expressions_and_grammars_are_kept(kind: ConstraintKind, source: str, pattern: str) -> None:
    for seed in range(5):
        rig = reply(Constraint(kind, source, "p"), sampling=SamplingParams(temperature=1.0, seed=seed))
        assert re.fullmatch(pattern, rig.text())
        assert rig.text().count("(") == rig.text().count(")")
        assert rig.finished().finish_reason == "stop"


def test_a_reply_ends_with_its_grammar_and_not_a_step_later() -> None:
    rig = reply(Constraint("regex", "abc", "p"))
    assert rig.text() == "abc"
    assert rig.finished().completion_tokens == 3


def test_the_turn_may_end_only_where_the_text_is_whole() -> None:
    grammar = grammar_of(Constraint("regex", "ab(cd)*", "p"))
    for text, may_end in (("", False), ("a", False), ("b", True), ("c", False), ("d", True)):
        write(grammar, text)
        assert bool(allowed(grammar) & TOKENIZER.eos_ids) == may_end


def test_no_text_spells_a_control_token() -> None:
    grammar = grammar_of(schema({"enum": ["<|im_end|>"]}))
    assert TOKENIZER.decode(grammar.forced(99)) == '"<|im_end|>"'
    grammar = grammar_of(schema({"type": "string"}))
    write(grammar, '"x')
    assert not allowed(grammar) & TOKENIZER.control_ids


def test_padding_rows_are_never_chosen() -> None:
    assert max(allowed(grammar_of(Constraint("regex", ".*", "p")), size=400)) < TOKENIZER.vocab_size


@pytest.mark.parametrize("wanted", [{"format": "time"}, {"type": ["null", "string"], "format": "date-time"}])
def test_fractions_of_a_second_come_to_an_end(wanted: dict[str, object]) -> None:
    grammar = grammar_of(schema({"type": "object", "properties": {"at": wanted}, "required": ["at"]}))
    day = "2026-02-03T" if wanted["format"] == "date-time" else ""
    write(grammar, f'{{"at": "{day}10:11:12.123456789+01:00"}}')
    assert grammar.is_complete
    grammar = grammar_of(schema(wanted))
    write(grammar, f'"{day}10:11:12.123456789')
    dots = TOKENIZER.encode("0" * 15)
    assert 0 < grammar.allows(dots) < len(dots)


def test_the_decimals_of_a_number_within_limits_come_to_an_end() -> None:
    for wanted in ({"type": "number", "minimum": 0}, {"type": ["number", "null"], "exclusiveMaximum": 5}):
        grammar = grammar_of(schema(wanted))
        write(grammar, "3.123456789")
        assert not allowed(grammar) & set(TOKENIZER.encode("0123456789"))
    free = grammar_of(schema({"type": "number"}))
    write(free, "1.6e-19")
    tiny = grammar_of(schema({"type": "number", "minimum": 1e-12, "maximum": 1e-10}))
    write(tiny, "0.00000000005")
    half = grammar_of(schema({"allOf": [{"type": "number", "minimum": 0}, {"multipleOf": 0.5}]}))
    write(half, "7.5")


def test_a_value_that_looks_like_a_schema_stays_as_it_is() -> None:
    value = {"format": "time"}
    for wanted in ({"const": value}, {"enum": [value]}):
        write(grammar_of(schema(wanted)), json.dumps(value))


def test_stop_strings_limits_and_cancels_end_a_constrained_reply() -> None:
    stopped = reply(schema(FORM), stop=('"kind"',))
    assert stopped.text().startswith('{"name"')
    assert stopped.finished().stop_string == '"kind"'
    assert reply(schema(FORM), max_new_tokens=5).finished().finish_reason == "length"
    rig = Rig()
    rig.submit(constraint=schema(FORM), max_new_tokens=600)
    for _ in range(5):
        rig.engine.step()
    rig.engine.cancel("r", CancelReason.CLIENT)
    rig.run()
    assert rig.finished().finish_reason == "cancelled"


@pytest.mark.parametrize(
    "params",
    [{"top_k": 3}, {"top_p": 0.3}, {"min_p": 0.5}, {"presence_penalty": 2.0}, {"repetition_penalty": 1.9}],
    ids=lambda params: next(iter(params)),
)
def test_cuts_and_penalties_choose_within_the_grammar(params: dict[str, float]) -> None:
    """What is likely without the grammar is a letter, so a cut that came before it would leave nothing."""
    sampling = SamplingParams(temperature=1.0, seed=3, **params)  # type: ignore[arg-type]
    assert re.fullmatch("[0-9]{30}", reply(Constraint("regex", "[0-9]{30}", "p"), sampling=sampling).text())


@pytest.fixture(scope="module")
def sentence_piece(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    path = write_tiny_gguf(tmp_path_factory.mktemp("spm") / "tiny.gguf", tokenizer="llama").path
    return read_tokenizer(open_gguf(path))


def test_vocabularies_with_a_space_before_every_text_write_what_is_forced_without_it(
    sentence_piece: Tokenizer,
) -> None:
    text = '{"the": "dog runs"}'
    request = GenerateRequest("r", prompt="x", constraint=schema({"const": {"the": "dog runs"}}))
    grammar = Constraints(sentence_piece, ReplyFormats()).grammar(request, ())
    assert grammar is not None
    written, forced_steps = b"", 0
    while not grammar.is_complete:
        choices = allowed(grammar, sentence_piece.vocab_size) - sentence_piece.eos_ids
        token = max(choices, key=lambda one: len(sentence_piece.token_bytes(one)))
        forced = grammar.forced(1)
        assert not forced or {*forced} == choices
        forced_steps += bool(forced)
        grammar.observe(token)
        written += sentence_piece.token_bytes(token)
    assert json.loads(written) == json.loads(text)
    assert forced_steps > 3


def test_biases_move_the_choice_within_the_grammar_and_not_out_of_it() -> None:
    constraint = Constraint("regex", "[abz]{8}", "p")
    z, forbidden = TOKENIZER.encode("z")[0], TOKENIZER.encode("q")[0]
    towards = replace(GREEDY, logit_bias=((z, 100.0), (forbidden, 100.0)))
    assert reply(constraint, sampling=towards).text() == "z" * 8
    away = replace(GREEDY, logit_bias=((z, -100.0),))
    assert set(reply(constraint, sampling=away).text()) <= {"a", "b"}


def test_a_bias_for_a_token_that_is_none_is_refused() -> None:
    with pytest.raises(PromptError, match="there is no token 259; this model's are 0 to 258") as error:
        Rig().submit(sampling=replace(GREEDY, logit_bias=((TOKENIZER.vocab_size, 1.0),)))
    assert (error.value.status, error.value.param) == (400, "logit_bias")


def test_one_compiled_grammar_serves_many_replies_that_know_nothing_of_each_other() -> None:
    constraints = Constraints(TOKENIZER, ReplyFormats())
    request = GenerateRequest("r", prompt="x", constraint=Constraint("regex", "abc", "p"))
    first, second = (constraints.grammar(request, ()) for _ in range(2))
    assert first is not None
    assert second is not None
    write(first, "ab")
    assert allowed(second) == set(TOKENIZER.encode("a"))


def test_a_grammar_whose_states_ran_out_is_compiled_anew_once_it_was_forgotten(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("agentserve.engine.constraints.compiler.MOST_STATES", 200)
    constraints = Constraints(TOKENIZER, ReplyFormats())
    request = GenerateRequest(
        "r", prompt="x", constraint=Constraint("regex", "(.{0,30}a.{0,30}b){1,20}", "p")
    )

    def walk(seed: int, steps: int) -> None:
        dice, grammar = random.Random(seed), constraints.grammar(request, ())
        assert grammar is not None
        for _ in range(steps):
            grammar.observe(dice.choice(sorted(allowed(grammar) - TOKENIZER.eos_ids)))

    with pytest.raises(BrokenConstraint, match="too many states"):
        walk(0, 400)
    with pytest.raises(BrokenConstraint, match="too many states"):
        walk(1, 10)
    constraints.forget()
    walk(1, 10)


def test_a_token_that_does_not_fit_breaks_the_constraint() -> None:
    grammar = grammar_of(Constraint("regex", "abc", "p"))
    with pytest.raises(BrokenConstraint, match="can't go on within its grammar"):
        grammar.observe(TOKENIZER.encode("x")[0])


def test_a_reply_that_can_not_go_on_fails_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    def stuck(_self: ReplyGrammar, _logits: object) -> None:
        raise BrokenConstraint("stuck")

    monkeypatch.setattr(ReplyGrammar, "masked", stuck)
    rig = Rig()
    rig.submit("bad", constraint=schema(FORM))
    rig.submit("good")
    with pytest.raises(BrokenConstraint):
        rig.run()
    rig.engine.fail_current("constraint_failed", "stuck")
    rig.run()
    assert rig.text("good")


class TestReasoning:
    """The reference vocabulary spells `<think>` in letters, so there the reply begins within reasoning."""

    def gated(
        self, pattern: str = "[0-9]{2}", *, opened: bool = True, start: int | None = None
    ) -> GatedGrammar:
        grammar = grammar_of(Constraint("regex", pattern, "p"))
        assert isinstance(grammar, ReplyGrammar)
        tokens = replace(reasoning_tokens(TOKENIZER, THINK), start=start)
        return GatedGrammar(grammar, TOKENIZER, tokens, opened)

    def test_reasoning_is_free_but_can_not_end_the_turn(self) -> None:
        grammar = self.gated()
        assert allowed(grammar) == set(range(TOKENIZER.vocab_size)) - TOKENIZER.eos_ids
        assert grammar.forced(9) == ()
        assert grammar.allows(TOKENIZER.encode("any")) == 3
        write(grammar, "let me see: </thin, no")
        assert len(allowed(grammar)) > 200

    def test_the_answer_is_held_to_the_grammar_behind_at_most_two_line_breaks(self) -> None:
        grammar = self.gated()
        digits = set(TOKENIZER.encode("0123456789"))
        write(grammar, "hm</think>")
        assert allowed(grammar) == digits | set(TOKENIZER.encode("\n"))
        write(grammar, "\n\n")
        assert allowed(grammar) == digits
        assert not grammar.is_complete
        write(grammar, "42")
        assert grammar.is_complete

    def test_a_model_that_need_not_reason_may_begin_with_either(self) -> None:
        start = TOKENIZER.encode("%")[0]
        for text in ("42", "%hm</think>\n42"):
            grammar = self.gated(opened=False, start=start)
            assert allowed(grammar) == {start, *TOKENIZER.encode("0123456789")}
            write(grammar, text)
            assert grammar.is_complete

    def test_the_marker_is_no_reasoning_once_the_answer_has_begun(self) -> None:
        start = TOKENIZER.encode("%")[0]
        grammar = self.gated(opened=False, start=start)
        write(grammar, "4")
        assert start not in allowed(grammar)

    def test_a_request_with_messages_gets_the_gate_of_its_model(self) -> None:
        constraints = Constraints(TOKENIZER, ReplyFormats(reasoning=THINK))
        request = GenerateRequest("r", (Message("user", "x"),), constraint=Constraint("regex", "ab", "p"))
        opened = constraints.grammar(request, TOKENIZER.encode("<|im_start|>assistant\n<think>\n"))
        assert opened is not None
        write(opened, "so</think>\n\nab")
        assert opened.is_complete
        closed = constraints.grammar(request, TOKENIZER.encode("<think>\n\n</think>\n\n"))
        assert closed is not None
        write(closed, "ab")
        bare = constraints.grammar(
            replace(request, messages=(), prompt="<think>"), TOKENIZER.encode("<think>")
        )
        assert bare is not None
        write(bare, "ab")


def test_a_seed_gives_the_same_document_again() -> None:
    texts = {reply(schema(FORM), sampling=SEEDED).text() for _ in range(2)}
    assert len(texts) == 1
