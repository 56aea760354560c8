"""Pins that requests ask for along the way: the room is booked at the admission, the pin made during the prefill.

    intake thread   how long the pin is: no pin at all for less than one block
    admission       is there room in the budget? else Rejected, or no pin where the request can do without
    prefill         once the prefix is computed, or taken over, it is pinned

Nothing is computed twice. A request that ends before that leaves no pin, and what it has booked is free again.
"""

from __future__ import annotations

import hashlib

import numpy as np

from ..capsules.capsule import PinName, PinWish, PrefixPinJob
from ..capsules.store import CapsuleStore
from ..messages.pins import PinRefused, PrefixPin, PrefixPinned
from ..protocol import Rejected
from ..sequence import Sequence
from .block_cache import Tokens


def plan_pin(sequence: Sequence, asked: PrefixPin, block_tokens: int) -> None:
    """Notes in a sequence what is to be pinned of its prompt. The name is made from the tokens, so that the same
    prefix is one pin however often it is asked for."""
    count = len(sequence.prompt) if asked.tokens is None else min(asked.tokens, len(sequence.prompt))
    whole = count // block_tokens * block_tokens
    if not whole:
        sequence.pinned = PrefixPinned(skipped="short")
        return
    name = PinName(sequence.namespace, _name(sequence.prompt[:whole]))
    sequence.prefix_pin = PrefixPinJob(PinWish(name), whole, asked.best_effort)


def admit(capsules: CapsuleStore, sequence: Sequence) -> Rejected | None:
    """Books the room for the pin of a request that asks for one. Why the request can't be served, if it can't."""
    job = sequence.prefix_pin
    if job is None:
        return None
    refusal = capsules.reserve(sequence.request_id, job.wish, sequence.prompt[: job.tokens])
    if refusal is None:
        return None
    sequence.prefix_pin = None
    if job.best_effort:
        sequence.pinned = PrefixPinned(rejected=refusal.code)
        return None
    return _rejected(refusal)


def keep(capsules: CapsuleStore, sequence: Sequence, block_tokens: int) -> None:
    """Makes the pin of a request once its session has so many tokens. One that is there already is left alone."""
    job, session = sequence.prefix_pin, sequence.session
    if job is None or session is None or session.committed < job.tokens:
        return
    if not capsules.holds(job.wish.name):
        capsules.pin(job.wish, session.leaf.path()[job.tokens // block_tokens - 1])
    capsules.release(sequence.request_id)
    sequence.prefix_pin = None
    sequence.pinned = PrefixPinned(job.tokens, job.wish.name.name)


def _name(tokens: Tokens) -> str:
    digest = hashlib.blake2b(np.array(tokens, "<i8").tobytes(), digest_size=8)
    return f"prefix-{digest.hexdigest()}"


def _rejected(refusal: PinRefused) -> Rejected:
    return Rejected(
        request_id=refusal.request_id,
        status=refusal.status,
        code=refusal.code,
        message=refusal.message,
        param="agentserve_pin_prefix",
        wanted_bytes=refusal.wanted_bytes,
        free_bytes=refusal.free_bytes,
    )
