"""How a table fits a terminal: which columns are shown, and how wide."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

_GAP = "  "
_ELLIPSIS = "…"
# A name in the first column is what other commands take: it stays whole, up to the length of an id of ours.
_KEY_WIDTH = 36
_READABLE = 12
_LEAST = 4


@dataclass(frozen=True, slots=True)
class Layout:
    """The width of each column, None for one that is left out. `cuts` says whether longer cells are shortened."""

    widths: tuple[int | None, ...]
    cuts: bool


def whole(widths: Sequence[int]) -> Layout:
    """All columns, and cells as they are."""
    return Layout(tuple(widths), cuts=False)


def fitted(heads: Sequence[str], widths: Sequence[int], room: int, spare: Sequence[str] = ()) -> Layout:
    """Columns that want `widths` in `room` characters.

    The widest are narrowed first, while they can still be read; then columns with the heads `spare` are left out, the
    first of them first; then what is left is narrowed as far as it must.
    """
    wanted: list[int | None] = list(widths)
    least = [_KEY_WIDTH, *(_READABLE for _ in widths[1:])]
    for head in spare:
        if _total([None if w is None else min(w, l) for w, l in zip(wanted, least, strict=True)]) <= room:
            break
        wanted[heads.index(head)] = None
    narrowed = _narrowed(wanted, least, room)
    return Layout(tuple(_narrowed(narrowed, [_LEAST] * len(wanted), room)), cuts=True)


def row_text(cells: Sequence[str], layout: Layout) -> str:
    """One line of a table."""
    shown = [(cell, width) for cell, width in zip(cells, layout.widths, strict=True) if width is not None]
    texts = (shortened(cell, width) if layout.cuts else cell for cell, width in shown)
    return _GAP.join(text.ljust(width) for text, (_, width) in zip(texts, shown, strict=True)).rstrip()


def shortened(text: str, width: int) -> str:
    """At most `width` characters of a text: its beginning and its end."""
    if len(text) <= width:
        return text
    end = (width - 1) // 2
    return text[: width - 1 - end] + _ELLIPSIS + text[len(text) - end :]


def _narrowed(widths: Sequence[int | None], least: Sequence[int], room: int) -> list[int | None]:
    """Takes from the widest column, again and again, until all fit or none may give more."""
    given = list(widths)
    for _ in range(max(0, _total(widths) - room)):
        spaces = [(width, index) for index, width in enumerate(given) if width and width > least[index]]
        if not spaces:
            break
        width, index = max(spaces)
        given[index] = width - 1
    return given


def _total(widths: Sequence[int | None]) -> int:
    shown = [width for width in widths if width is not None]
    return sum(shown) + len(_GAP) * (len(shown) - 1)
