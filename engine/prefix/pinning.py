"""From the wish to pin something to a sequence whose prompt is what will be pinned. Runs on the intake thread."""

from __future__ import annotations

import time
from collections import OrderedDict
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from ..capsules.capsule import PinName, PinWish, is_pin_name
from ..capsules.store import Pin as KnownPin
from ..prompts.prompting import Prompt, Prompter, PromptError
from ..protocol import GenerateRequest, Message, Pin
from ..sequence import Sequence, Stamps
from .block_cache import Tokens, common

_REMEMBERED = 16
# Pins are computed one after the other, beside the conversations.
PIN_LANE = "pins"


class _Recent(NamedTuple):
    namespace: str
    prompt: Prompt


@dataclass(slots=True)
class RecentPrompts:
    """The tokens of the last few requests, by request id."""

    _items: OrderedDict[str, _Recent] = field(default_factory=OrderedDict)

    def remember(self, request_id: str, namespace: str, prompt: Prompt) -> None:
        """A request with this prompt was accepted."""
        self._items[request_id] = _Recent(namespace, prompt)
        while len(self._items) > _REMEMBERED:
            self._items.popitem(last=False)

    def of(self, request_id: str, namespace: str) -> Tokens | None:
        """The prompt of one request; ids of another namespace do not exist for this one."""
        recent = self._items.get(request_id)
        return recent.prompt.tokens if recent is not None and recent.namespace == namespace else None

    def stable(self, namespace: str) -> Tokens:
        """What the last request has in common with an earlier one, or its system text and tools if that is more."""
        prompts = [recent.prompt for recent in self._items.values() if recent.namespace == namespace]
        if not prompts:
            return ()
        last = prompts.pop()
        shared = max((common(last.tokens, other.tokens) for other in prompts), default=0)
        return last.tokens[: max(shared, last.stable)]


@dataclass(frozen=True, slots=True)
class PinIntake:
    """Makes the sequences of pins, `block_tokens` being the unit of their length."""

    prompter: Prompter
    block_tokens: int
    recent: RecentPrompts = field(default_factory=RecentPrompts)

    def sequence(self, pin: Pin, stamps: Stamps) -> Sequence:
        """What will be pinned, cut to whole blocks. Raises PromptError when there is nothing that could be."""
        if not is_pin_name(pin.name):
            rule = "1 to 128 letters, digits, dots, dashes and underscores, beginning with a letter or digit"
            raise PromptError(400, "invalid_pin_name", f"a pin's name is {rule}", "name")
        tokens = self._tokens(pin)
        count = len(tokens) if pin.tokens is None else min(pin.tokens, len(tokens))
        whole = count // self.block_tokens * self.block_tokens
        if whole <= 0:
            message = f"{count} tokens are less than one block of {self.block_tokens}"
            raise PromptError(400, "pin_too_short", message, "tokens", count)
        request = GenerateRequest(pin.request_id, max_new_tokens=1, namespace=pin.namespace)
        sequence = self.prompter.sequence(request, Prompt(tokens[:whole]), stamps)
        expires = None if pin.ttl_s is None else time.time() + pin.ttl_s
        return replace(sequence, lane=PIN_LANE, pin=PinWish(PinName(pin.namespace, pin.name), expires))

    def _tokens(self, pin: Pin) -> Tokens:
        if pin.request is not None:
            return self._of_request(pin.request)
        if pin.from_request is not None:
            found = self.recent.of(pin.from_request, pin.namespace)
            if found is None:
                message = f"the prompt of request {pin.from_request!r} is not known any more"
                raise PromptError(404, "request_not_found", message, "from")
            return found
        stable = self.recent.stable(pin.namespace)
        if not stable:
            raise PromptError(404, "nothing_to_pin", "no request has shown a stable prefix yet", "from")
        return stable

    def _of_request(self, request: GenerateRequest) -> Tokens:
        """The tokens that a prompt shares with its continuation: without the beginning of an answer."""
        tokens = self.prompter.prompt(request).tokens
        if not request.messages:
            return tokens
        longer = replace(request, messages=(*request.messages, Message("user", "-")))
        try:
            return tokens[: common(tokens, self.prompter.prompt(longer).tokens)]
        except PromptError:
            # Some templates take no two user messages in a row.
            return tokens


def pin_again(sequence: Sequence, pin: KnownPin) -> Sequence:
    """A sequence that computes a lost pin anew, made from that of a request that extends it."""
    return replace(
        sequence,
        request_id=f"pin {pin.name.namespace} {pin.name.name}",
        prompt=pin.tokens,
        max_new_tokens=1,
        session_id=None,
        lane=PIN_LANE,
        deadline=None,
        stable=0,
        turn_start=0,
        canonical=None,
        origin=None,
        session=None,
        conversation=None,
        output=[],
        cached_tokens=0,
        unsent_tokens=0,
        cancelled=None,
        prefix_pin=None,
        pinned=None,
        admission=None,
        explain=None,
        choice=0,
        pin=PinWish(pin.name, pin.expires, internal=True),
    )
