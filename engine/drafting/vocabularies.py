"""Whether two models mean the same by the same token ids, so that one can draft for the other."""

from __future__ import annotations

from ..text.tokenise import Tokenizer


def first_difference(one: Tokenizer, other: Tokenizer) -> int | None:
    """The first token id that is spelled differently, or that one of them lacks; None when they agree.

    Rows of padding at the end do not count: models of one family round their vocabulary up to different sizes, and
    the converter of GGUF files calls what is added `[PAD<id>]`.
    """
    shared = min(one.vocab_size, other.vocab_size)
    for token in range(shared):
        if one.spelling(token) != other.spelling(token):
            return token
    longer = one if one.vocab_size > shared else other
    rest = range(shared, longer.vocab_size)
    return next((token for token in rest if longer.spelling(token) != b"[PAD%d]" % token), None)


def spelled(tokenizer: Tokenizer, token: int) -> str:
    """A token as a message to a person shows it."""
    if token >= tokenizer.vocab_size:
        return "nothing"
    return repr(tokenizer.spelling(token).decode("utf-8", "backslashreplace"))
