"""Text up to the first of several ends, wherever it is cut and whatever the ends have in common."""

from __future__ import annotations

from collections.abc import Sequence

from agentserve.engine.tool_formats.events import Text
from agentserve.engine.tool_formats.grammar import Source, stream_until
from hypothesis import given, settings
from hypothesis import strategies as st


def up_to(ends: Sequence[str], pieces: Sequence[str]) -> tuple[str, str | None]:
    """What is passed on, and the end that was found."""
    source, shown = Source(), ""
    reading = stream_until(source, ends, Text)
    remaining = iter(pieces)
    try:
        while True:
            piece = next(reading)
            if isinstance(piece, Text):
                shown += piece.text
            elif (more := next(remaining, None)) is not None:
                source.append(more)
            else:
                source.end()
    except StopIteration as stop:
        return shown, stop.value


letters = st.text("ab", min_size=1, max_size=4)


@settings(deadline=None)
@given(st.text("abc", max_size=20), st.lists(letters, min_size=1, max_size=4))
def test_the_leftmost_end_is_found(text: str, ends: list[str]) -> None:
    # Of ends that begin with each other, only the shortest can be told while text arrives.
    ends = [end for end in ends if not any(end != other and end.startswith(other) for other in ends)]
    places = [(text.find(end), end) for end in ends if end in text]
    expected = (text[: min(places)[0]], min(places)[1]) if places else (text, None)
    assert up_to(ends, [text]) == expected
    assert up_to(ends, list(text)) == expected


def test_a_beginning_is_held_back_until_it_is_decided() -> None:
    assert up_to(["abbb", "b"], ["a", "b", "b"]) == ("a", "b")
    assert up_to(["abbb", "b"], ["a", "b", "bb"]) == ("", "abbb")
