from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from agentserve.engine.protocol import SamplingParams
from agentserve.engine.replies.sampling import ResolvedSampling, Sampler, draw, resolve_sampling, uniform

PLAIN = ResolvedSampling(1.0, 0, 1.0, 0.0, 1.0, 0.0, 0.0, seed=1)
LOGITS = np.log(np.array([0.5, 0.25, 0.15, 0.07, 0.03], np.float32))


def shares(params: ResolvedSampling, logits: np.ndarray = LOGITS, draws: int = 4000) -> np.ndarray:
    """How often each token comes up over evenly spread random numbers."""
    tokens = [draw(logits, params, (i + 0.5) / draws) for i in range(draws)]
    return np.bincount(tokens, minlength=len(logits)) / draws


def test_temperature_one_gives_the_softmax() -> None:
    np.testing.assert_allclose(shares(PLAIN), np.exp(LOGITS), atol=1e-3)


def test_a_low_temperature_sharpens_and_a_high_one_flattens() -> None:
    squared = np.exp(2 * LOGITS) / np.exp(2 * LOGITS).sum()
    np.testing.assert_allclose(shares(replace(PLAIN, temperature=0.5)), squared, atol=1e-3)


@pytest.mark.parametrize(
    ("change", "left"),
    [
        ({"top_k": 2}, [0, 1]),
        ({"top_p": 0.5}, [0]),
        ({"top_p": 0.51}, [0, 1]),
        ({"top_p": 0.9}, [0, 1, 2]),
        ({"min_p": 0.29}, [0, 1, 2]),
        ({"top_k": 3, "top_p": 0.6}, [0, 1]),
    ],
)
def test_a_cut_leaves_the_likeliest_with_their_proportions(change: dict[str, float], left: list[int]) -> None:
    expected = np.zeros(5)
    expected[left] = np.exp(LOGITS[left]) / np.exp(LOGITS[left]).sum()
    np.testing.assert_allclose(shares(replace(PLAIN, **change)), expected, atol=1e-3)


def test_top_p_over_a_large_flat_vocabulary_keeps_its_share() -> None:
    # Flat: far more tokens are needed for the mass than the sorted head holds.
    flat = np.zeros(8000, np.float32)
    counts = shares(replace(PLAIN, top_p=0.75), flat, draws=8000)
    assert 5990 <= np.count_nonzero(counts) <= 6001


def test_greedy_takes_the_largest_logit() -> None:
    sampler = Sampler(replace(PLAIN, temperature=0.0), [])
    assert sampler.sample(np.array([1.0, 3.0, 2.0], np.float32), position=7) == 1


def test_the_random_number_depends_on_seed_and_position_alone() -> None:
    assert uniform(3, 10) == uniform(3, 10)
    numbers = {uniform(seed, position) for seed in range(20) for position in range(50)}
    assert len(numbers) == 1000
    assert 0.45 < np.mean(list(numbers)) < 0.55


def test_negative_and_huge_seeds_are_taken() -> None:
    assert 0 <= uniform(-1, 0) < 1
    assert 0 <= uniform(2**70, 0) < 1


def test_presence_and_frequency_penalties_count_the_output_alone() -> None:
    sampler = Sampler(
        replace(PLAIN, temperature=0.0, presence_penalty=0.5, frequency_penalty=0.25), [2, 2, 2]
    )
    logits = np.array([1.0, 0.9, 0.8], np.float32)
    assert sampler.sample(logits, 0) == 0
    sampler.observe(0)
    assert sampler.sample(logits, 1) == 1  # 1.0 - 0.75 < 0.9
    sampler.observe(1)
    assert sampler.sample(logits, 2) == 2


def test_the_repetition_penalty_reaches_prompt_tokens_of_either_sign() -> None:
    sampler = Sampler(replace(PLAIN, temperature=0.0, repetition_penalty=2.0), [0, 1])
    assert sampler.sample(np.array([3.0, -1.0, 2.0], np.float32), 0) == 2
    assert sampler.sample(np.array([-9.0, -1.0, -1.5], np.float32), 0) == 2


def test_penalties_leave_the_callers_logits_alone() -> None:
    logits = np.array([3.0, 1.0], np.float32)
    Sampler(replace(PLAIN, repetition_penalty=2.0), [0]).sample(logits, 0)
    assert logits.tolist() == [3.0, 1.0]


def test_the_request_goes_before_the_model_and_the_model_before_the_default() -> None:
    model = SamplingParams(temperature=0.6, top_k=20)
    resolved = resolve_sampling(SamplingParams(temperature=0.0, seed=None), model, fresh_seed=9)
    assert (resolved.temperature, resolved.top_k, resolved.top_p, resolved.seed) == (0.0, 20, 1.0, 9)
