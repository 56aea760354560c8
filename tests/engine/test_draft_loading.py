"""A draft model is loaded beside the other one, or the load fails with the reason."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from agentserve.engine.drafting.length import Promise
from agentserve.engine.drafting.vocabularies import first_difference
from agentserve.engine.engine import Engine
from agentserve.engine.gguf.source import open_gguf
from agentserve.engine.loading import LoadedModel, load
from agentserve.engine.model_errors import LoadError
from agentserve.engine.protocol import (
    DrafterCounts,
    DraftModelFile,
    DraftStats,
    Finished,
    GenerateRequest,
    LoadModel,
    Message,
    RequestEvent,
    SamplingParams,
    TextDelta,
)
from agentserve.engine.runners.memory import plan_kv
from agentserve.engine.runners.reference_model import byte_tokenizer
from agentserve.engine.runners.runner import KvGeometry
from agentserve.engine.sequence import Stamps
from engine_rig import GREEDY
from gguf import GGUFWriter
from gguf.constants import GGMLQuantizationType as Q
from tiny_encoders import make_tiny_encoder
from tiny_models import TinySizes, write_tiny_gguf

SEEDED = SamplingParams(temperature=0.8, seed=3, repetition_penalty=1.1)


def load_pair(big: Path, small: Path | None, **fields: object) -> LoadedModel:
    draft = None if small is None else DraftModelFile("small", str(small))
    spec = LoadModel("big", str(big), exact=True, max_draft_tokens=8, draft_tokens=8, draft_model=draft)
    return load(replace(spec, **fields), lambda _stage: None)  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def big(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("big") / "big.gguf"
    return write_tiny_gguf(path, "qwen2", tensor_type=Q.Q4_0, seed=1).path


@pytest.fixture(scope="module")
def real(smollm2: Path, tmp_path_factory: pytest.TempPathFactory) -> LoadedModel:
    """A real model that drafts for itself."""
    cache = str(tmp_path_factory.mktemp("graphs"))
    return load_pair(smollm2, smollm2, threads=2, max_context=1024, compile_cache_dir=cache)


class Talk:
    """One loaded model, asked by hand."""

    def __init__(self, model: LoadedModel) -> None:
        self._model = model
        self._events: list[RequestEvent] = []
        stops = model.prompter.tokenizer.eos_ids
        draft = model.draft_model()
        self.engine = Engine(
            model.runner, model.config, stops, model.block_cache(), self._events.append, draft_model=draft
        )
        self._asked = 0

    def ask(
        self, text: str, most: int | None, sampling: SamplingParams = GREEDY, tokens: int = 32
    ) -> tuple[str, DraftStats]:
        self._asked += 1
        name = f"r{self._asked}"
        request = GenerateRequest(
            name, (Message("user", text),), sampling=sampling, max_new_tokens=tokens, draft_tokens=most
        )
        prompter = self._model.prompter
        self.engine.submit(prompter.sequence(request, prompter.prompt(request), Stamps(0.0)))
        while self.engine.load:
            self.engine.step()
        self.engine.integrity.whole()
        mine = [event for event in self._events if getattr(event, "request_id", None) == name]
        (end,) = [event for event in mine if isinstance(event, Finished)]
        return "".join(event.text for event in mine if isinstance(event, TextDelta)), end.drafts


def of_model(drafts: DraftStats) -> DrafterCounts:
    """What became of the drafts of the draft model."""
    none = DrafterCounts("model", 0, 0, 0, 0)
    return next((one for one in drafts.drafters if one.drafter == "model"), none)


def wrong(counts: DrafterCounts) -> int:
    """Drafts that were not right to the end."""
    return counts.attempts - counts.full


@pytest.fixture
def only_the_model_pays(monkeypatch: pytest.MonkeyPatch) -> None:
    def pays(rate: float, most: int, token_cost: float = 0.0, **_: object) -> Promise:
        return Promise(most, 3.0) if token_cost else Promise()

    monkeypatch.setattr("agentserve.engine.drafting.speculation.best_length", pays)


@pytest.mark.usefixtures("only_the_model_pays")
def test_a_model_of_another_family_drafts_and_the_text_stays(big: Path, tmp_path: Path) -> None:
    small = write_tiny_gguf(tmp_path / "small.gguf", "llama", sizes=TinySizes(layers=1), seed=2).path
    model = load_pair(big, small, compile_cache_dir=str(tmp_path / "cache"))
    info = model.info.draft_model
    assert info is not None
    assert (info.name, info.context_length) == ("small", model.info.context_length)
    assert 0 < info.parameters < model.info.parameters
    assert 0 < info.kv_budget_bytes < model.info.kv_budget_bytes
    talk = Talk(model)
    for sampling in (GREEDY, SEEDED):
        with_drafts, drafts = talk.ask("the quick brown fox", 8, sampling)
        assert with_drafts == talk.ask("the quick brown fox", 0, sampling)[0]
        assert of_model(drafts).attempts > 0
    talk.engine.speculation.save()
    files = sorted(file.name.rsplit("-", 1)[0] for file in (tmp_path / "cache").glob("*.json"))
    assert files == ["draft-step-costs", "step-costs"]


@pytest.mark.usefixtures("only_the_model_pays")
def test_a_model_that_drafts_for_itself_is_nearly_always_right(big: Path) -> None:
    counts = of_model(Talk(load_pair(big, big)).ask("def add(left, right)", 8)[1])
    assert counts.attempts > 0
    assert wrong(counts) <= 1


def test_a_vocabulary_that_differs_is_named_with_the_first_token_that_does(big: Path, tmp_path: Path) -> None:
    shorter = write_tiny_gguf(tmp_path / "a.gguf", "llama", sizes=TinySizes(layers=1, vocab=350)).path
    other = write_tiny_gguf(tmp_path / "b.gguf", "llama", sizes=TinySizes(layers=1), tokenizer="llama").path
    for small, reason in (
        (shorter, r"token 350 is nothing there and '.+' here"),
        (other, r"token 0 is '' there and '<\|endoftext\|>' here"),
    ):
        with pytest.raises(LoadError) as caught:
            load_pair(big, small)
        assert caught.value.code == "invalid_draft_model"
        expected = f"small can't draft for big: their vocabularies differ: {reason}"
        assert re.fullmatch(expected, caught.value.message)


def test_rows_of_padding_are_no_difference() -> None:
    names = ("<|im_end|>", "<|end|>")
    padded = byte_tokenizer((*names, "[PAD258]", "[PAD259]"))
    assert first_difference(byte_tokenizer(names), padded) is None
    assert first_difference(padded, byte_tokenizer(names)) is None
    assert first_difference(padded, byte_tokenizer((*names, "[PAD9]"))) == 258
    assert first_difference(byte_tokenizer(names), byte_tokenizer((*names, "<|new|>"))) == 258


def test_what_can_not_draft_is_refused_with_both_names(big: Path, tmp_path: Path) -> None:
    broken = tmp_path / "broken.gguf"
    broken.write_bytes(b"no model at all")
    encoder = tmp_path / "encoder.gguf"
    make_tiny_encoder().write(encoder)
    for small, reason in ((broken, "GGUF"), (encoder, "bert")):
        with pytest.raises(LoadError, match=rf"small can't draft for big: .*{reason}") as caught:
            load_pair(big, small)
        assert caught.value.code == "invalid_draft_model"
        assert str(tmp_path) not in caught.value.message


def test_a_model_with_recurrent_state_can_not_draft() -> None:
    spec = LoadModel("reference", None, max_draft_tokens=4, draft_model=DraftModelFile("reference", None))
    with pytest.raises(LoadError, match="reference can't draft for reference: it has recurrent state"):
        load(spec, lambda _stage: None)


def test_no_draft_model_is_loaded_where_nothing_is_drafted(big: Path, tmp_path: Path) -> None:
    model = load_pair(big, tmp_path / "nothing.gguf", max_draft_tokens=0)
    assert model.draft is None
    assert model.info.draft_model is None
    assert load_pair(big, None).draft_model() is None


def test_both_caches_are_paid_from_one_budget_and_hold_as_many_tokens(big: Path) -> None:
    own, draft = KvGeometry(32, 3000), KvGeometry(16, 500)
    plan = plan_kv(own, 320, budget_bytes=80_000, available=10**9, draft=draft)
    assert (plan.blocks, plan.draft_blocks) == (20, 40)
    with pytest.raises(MemoryError, match=r"needs 8,000 bytes, 2,000 of them for the draft model, and may"):
        plan_kv(own, 320, budget_bytes=7_999, available=10**9, draft=draft)
    with pytest.raises(LoadError, match="for the draft model") as caught:
        load_pair(big, big, kv_budget_bytes=1000)
    assert caught.value.code == "out_of_memory"


def test_weights_that_do_not_fit_beside_those_of_the_model_are_refused_with_figures(
    big: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    available = iter([10**12, 1000])
    monkeypatch.setattr("agentserve.engine.runners.loading.available_bytes", lambda: next(available))
    reason = r"small can't draft for big: loading this model takes [\d,]+ bytes of memory and 1,000 are"
    with pytest.raises(LoadError, match=reason) as caught:
        load_pair(big, big)
    assert caught.value.code == "out_of_memory"


@pytest.mark.model
@pytest.mark.usefixtures("only_the_model_pays")
def test_a_real_model_drafts_for_itself_and_says_the_same_in_exact_mode(real: LoadedModel) -> None:
    talk = Talk(real)
    text = "Repeat this list exactly: red, green, blue, yellow, red, green, blue, yellow, red, green, blue."
    plain, _ = talk.ask(text, 0)
    drafted, drafts = talk.ask(text, 8)
    assert drafted == plain
    # Where two tokens are nearly tied, a step of a single row may choose the other one than a step of several.
    assert of_model(drafts).accepted > 0.7 * of_model(drafts).drafted
    assert drafts.tokens_per_step > 5
    assert talk.ask(text, 8, SEEDED, 16)[0] == talk.ask(text, 0, SEEDED, 16)[0]


@pytest.mark.model
def test_a_bad_draft_model_is_left_alone_after_a_few_tokens(
    real: LoadedModel, smollm2: Path, tmp_path: Path
) -> None:
    """A tiny one with random weights, of which a token costs next to nothing."""
    small = with_vocabulary_of(smollm2, tmp_path / "small.gguf")
    tiny = load_pair(small, small).draft
    assert tiny is not None
    talk = Talk(replace(real, draft=replace(tiny, share=0.01)))
    while talk.engine.step():
        pass
    first = of_model(talk.ask("Tell me about the sea.", None, SEEDED, 40)[1])
    assert 0 < first.attempts < 12
    assert first.accepted <= 2
    # In exact mode a second row is computed anyway, so that single tokens pay a little longer.
    assert of_model(talk.ask("Tell me about the sky.", None, SEEDED, 40)[1]).drafted < 8


def with_vocabulary_of(model: Path, path: Path) -> Path:
    """A tiny model that knows the tokens of another one."""
    keys = open_gguf(model).keys

    def vocabulary(writer: GGUFWriter) -> None:
        writer.add_tokenizer_model("gpt2")
        writer.add_tokenizer_pre("smollm")
        writer.add_token_list(keys.texts("tokenizer.ggml.tokens"))
        writer.add_token_types(np.asarray(keys.raw("tokenizer.ggml.token_type")).tolist())
        writer.add_token_merges(keys.texts("tokenizer.ggml.merges"))
        writer.add_eos_token_id(2)

    sizes = TinySizes(layers=1, hidden=32, heads=2, kv_heads=1, head_dim=16, vocab=49_152, context=1024)
    return write_tiny_gguf(path, "llama", sizes=sizes, vocabulary=vocabulary).path
