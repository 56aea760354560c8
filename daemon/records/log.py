"""The records of ended requests: the last ones in memory, all of them as lines of `requests.jsonl`."""

from __future__ import annotations

import logging
import os
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from ..snapshot import RequestRecord
from .ledger import Entry
from .records import human_line, record_of

KEPT = 1000
FILE_BYTES = 10 * 2**20
FILES_KEPT = 3
CONTENT_CHARACTERS = 65536

_LOG = logging.getLogger("agentserve.requests")


class RecordFile:
    """A file of JSON lines. Before it grows over `limit` bytes it becomes `.1`, what was `.1` becomes `.2`, and so
    on; the oldest of `kept` is dropped. Only its owner can read it. A disk that is full costs records and no request."""

    def __init__(self, path: Path, limit: int = FILE_BYTES, kept: int = FILES_KEPT) -> None:
        self.path = path
        self._limit = limit
        self._kept = kept
        self._is_broken = False

    def append(self, line: bytes) -> None:
        """Adds a line. A file that can't be written is told of once."""
        try:
            self._rotate(len(line))
            with open(self.path, "ab", opener=_private) as file:
                file.write(line)
            self._is_broken = False
        except OSError as error:
            if not self._is_broken:
                _LOG.warning("records are lost: %s can't be written: %s", self.path, error.strerror)
            self._is_broken = True

    def _rotate(self, coming: int) -> None:
        if not self.path.exists():
            self.path.parent.mkdir(parents=True, exist_ok=True)
            return
        if self.path.stat().st_size + coming <= self._limit:
            return
        for number in range(self._kept, 0, -1):
            older = self._numbered(number - 1)
            if older.exists():
                older.replace(self._numbered(number))

    def _numbered(self, number: int) -> Path:
        return self.path.with_name(f"{self.path.name}.{number}") if number else self.path


def _private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)


class RecordLog:
    """Takes the record of each request that ends. `file` None keeps none on disk.

    Prompt and answer are written only where `contents` is set, and each is cut after 65,536 characters.
    """

    def __init__(self, file: RecordFile | None = None, *, contents: bool = False, kept: int = KEPT) -> None:
        self._file = file
        self._contents = contents
        self._records: deque[RequestRecord] = deque(maxlen=kept)

    def close(self, entry: Entry) -> RequestRecord:
        """Writes the record of an entry that has ended, and returns it."""
        record = record_of(entry)
        self._records.appendleft(record)
        _LOG.info("%s", human_line(record))
        if self._file is not None:
            content = _content(entry) if self._contents else {}
            line = msgspec.to_builtins(record) | content
            self._file.append(msgspec.json.encode(line) + b"\n")
        return record

    def newest(self) -> Iterator[RequestRecord]:
        """The last records, newest first."""
        return iter(self._records)


def _content(entry: Entry) -> dict[str, Any]:
    body = (entry.body or b"").decode("utf-8", "replace")
    answer = "".join(entry.generation.texts or ())
    return {"content": {"request": body[:CONTENT_CHARACTERS], "answer": answer[:CONTENT_CHARACTERS]}}
