"""Incremental text: whole characters, stop strings, and no dependence on how the stream was cut."""

from __future__ import annotations

import itertools

import pytest
from agentserve.engine.text.detokenise import Detokenizer, StopStrings
from hypothesis import given
from hypothesis import strategies as st


class Bytes:
    """A tokenizer of single bytes; tokens above 255 are control tokens."""

    def token_bytes(self, token_id: int) -> bytes:
        return bytes([token_id]) if token_id < 256 else b""


def pushed(tokens: list[int]) -> list[str]:
    detokenizer = Detokenizer(Bytes())
    return [*map(detokenizer.push, tokens), detokenizer.finish()]


def test_a_character_appears_with_its_last_byte() -> None:
    assert pushed(list("a€".encode())) == ["a", "", "", "€", ""]


def test_a_character_that_is_never_completed_becomes_a_replacement_at_the_end() -> None:
    assert pushed(list("a€".encode())[:-1]) == ["a", "", "", "\ufffd"]


def test_bytes_that_can_not_be_utf8_become_replacements_at_once() -> None:
    assert pushed([0xFF, 0x61, 0xE2, 0x61]) == ["\ufffd", "a", "", "\ufffda", ""]


def test_a_control_token_inside_a_character_does_not_tear_it() -> None:
    first, *rest = "é".encode()
    assert "".join(pushed([first, 300, *rest])) == "é"


@given(st.lists(st.integers(0, 260)))
def test_pieces_together_are_the_decoded_whole(tokens: list[int]) -> None:
    whole = b"".join(map(Bytes().token_bytes, tokens)).decode("utf-8", "replace")
    assert "".join(pushed(tokens)) == whole


@given(st.text())
def test_no_piece_of_valid_text_holds_a_replacement(text: str) -> None:
    clean = text.encode("utf-8", "replace").decode().replace("\ufffd", "")
    assert "\ufffd" not in "".join(pushed(list(clean.encode())))


def run(stops: list[str], pieces: list[str]) -> tuple[str, str | None]:
    strings, shown = StopStrings(stops), ""
    for piece in pieces:
        result = strings.push(piece)
        shown += result.text
        if result.matched is not None:
            return shown, result.matched
    return shown + strings.finish(), None


@pytest.mark.parametrize("at", range(len("one two END three") + 1))
def test_a_stop_string_is_found_wherever_the_text_is_split(at: int) -> None:
    text = "one two END three"
    assert run(["END"], [text[:at], text[at:]]) == ("one two ", "END")


def test_text_is_held_back_only_while_it_may_become_a_stop_string() -> None:
    strings = StopStrings(["</end>"])
    assert strings.push("abc<") == ("abc", None)
    assert strings.push("/en") == ("", None)
    assert strings.push("x") == ("</enx", None)
    assert strings.push("</end") == ("", None)
    assert strings.finish() == "</end"
    assert strings.finish() == ""


def test_the_stop_string_that_is_complete_first_wins_and_the_longest_of_those() -> None:
    assert run(["abcd", "bc"], ["abcd"]) == ("a", "bc")
    assert run(["bc", "abc"], ["xabc"]) == ("x", "abc")


def test_nothing_comes_after_a_match() -> None:
    strings = StopStrings(["."])
    assert strings.push("a.b") == ("a", ".")
    assert strings.push("more") == ("", ".")
    assert strings.finish() == ""


def test_without_stop_strings_nothing_is_held_back() -> None:
    strings = StopStrings([])
    assert strings.push("text") == ("text", None)
    assert strings.finish() == ""


def test_an_empty_stop_string_is_refused() -> None:
    with pytest.raises(ValueError, match="empty"):
        StopStrings(["a", ""])


small = st.text("ab", min_size=1, max_size=4)


@given(text=st.text("abc", max_size=40), stops=st.lists(small, max_size=4), cuts=st.lists(st.integers(0, 40)))
def test_the_result_does_not_depend_on_how_the_text_was_cut(
    text: str, stops: list[str], cuts: list[int]
) -> None:
    edges = [0, *sorted(cut for cut in cuts if cut < len(text)), len(text)]
    pieces = [text[start:end] for start, end in itertools.pairwise(edges)]
    shown, matched = run(stops, pieces)
    assert (shown, matched) == run(stops, list(text))
    if matched is None:
        assert shown == text
        assert not any(stop in text for stop in stops)
    else:
        assert text.startswith(shown + matched)
        assert not any(stop in (shown + matched)[:-1] for stop in stops)
