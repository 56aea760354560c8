"""Downloads one file over HTTP into a partial file, going on where an earlier attempt stopped."""

from __future__ import annotations

import ssl
import time
from collections.abc import Sequence
from pathlib import Path
from typing import BinaryIO, NamedTuple

import httpx

from ..errors import PullError
from .pull_progress import OnProgress, PullProgress, PullStage
from .wheel_source import PipConfig

RETRY_DELAYS_S = (0.5, 1.0, 2.0, 4.0, 8.0)
TIMEOUT = httpx.Timeout(60, connect=20)


class Download(NamedTuple):
    """What to fetch: `url` into `target`, which may hold the first bytes already; `size` is the whole file's."""

    url: str
    target: Path
    size: int


class _Dropped(Exception):
    """The connection or the server failed in a way that another attempt may mend."""


def fetch(
    job: Download,
    config: PipConfig,
    on_progress: OnProgress,
    delays_s: Sequence[float] = RETRY_DELAYS_S,
) -> None:
    """Completes `job.target` to `job.size` bytes; its content is the caller's to check.

    A dropped connection is taken up again after each of `delays_s` seconds; the count starts anew when an
    attempt brought bytes. The partial file stays on every failure. Raises PullError, OSError.
    """
    waits = list(delays_s)
    with _client(job.url, config) as client:
        while (before := _bytes_of(job.target)) != job.size:
            try:
                _attempt(client, job, on_progress)
            except _Dropped as failure:
                if _bytes_of(job.target) > before:
                    waits = list(delays_s)
                if not waits:
                    raise PullError(
                        f"The download was given up: {failure}; run it again to go on"
                    ) from failure
                on_progress(PullProgress(PullStage.RETRYING, _bytes_of(job.target), job.size))
                time.sleep(waits.pop(0))


def _client(url: str, config: PipConfig) -> httpx.Client:
    return httpx.Client(
        verify=_certificates(config.cert),
        proxy=config.proxy,
        auth=config.credentials(url),
        timeout=TIMEOUT,
        follow_redirects=True,
        headers={"User-Agent": "agentserve", "Accept-Encoding": "identity"},
    )


def _certificates(cert: str | None) -> ssl.SSLContext:
    """Those of pip's `cert` alone, else the usual authorities and the system's own."""
    if cert:
        try:
            return ssl.create_default_context(cafile=cert)
        except OSError as error:
            raise PullError(f"pip's certificate file {cert} can't be read: {error}") from error
    context = httpx.create_ssl_context()
    context.load_default_certs()
    return context


def _attempt(client: httpx.Client, job: Download, on_progress: OnProgress) -> None:
    have = _bytes_of(job.target)
    if have > job.size:
        job.target.unlink()
        have = 0
    headers = {"Range": f"bytes={have}-"} if have else {}
    try:
        with client.stream("GET", job.url, headers=headers) as answer:
            _refuse_status(answer, job.target)
            start = have if answer.status_code == httpx.codes.PARTIAL_CONTENT else 0
            _append(answer, job, start, on_progress)
    except httpx.TransportError as error:
        raise _Dropped(str(error) or type(error).__name__) from error


def _append(answer: httpx.Response, job: Download, start: int, on_progress: OnProgress) -> None:
    if start and not answer.headers.get("Content-Range", "").startswith(f"bytes {start}-"):
        job.target.unlink()
        raise _Dropped("the server sent another part of the file than the one asked for")
    offered = start + int(answer.headers.get("Content-Length", job.size - start))
    if offered != job.size:
        job.target.unlink(missing_ok=True)
        raise PullError(f"{_host(job.url)} offers a file of {offered} bytes, expected {job.size}")
    with job.target.open("ab" if start else "wb") as sink:
        on_progress(PullProgress(PullStage.DOWNLOADING, start, job.size))
        _copy_body(answer, sink, job, start, on_progress)


def _copy_body(
    answer: httpx.Response, sink: BinaryIO, job: Download, done: int, on_progress: OnProgress
) -> None:
    for chunk in answer.iter_raw():
        sink.write(chunk)
        done += len(chunk)
        if done > job.size:
            raise PullError(f"{_host(job.url)} sends more than the expected {job.size} bytes")
        on_progress(PullProgress(PullStage.DOWNLOADING, done, job.size))
    if done < job.size:
        raise _Dropped(f"the server ended the file after {done} of {job.size} bytes")


def _refuse_status(answer: httpx.Response, target: Path) -> None:
    status = answer.status_code
    if status == httpx.codes.REQUESTED_RANGE_NOT_SATISFIABLE:
        target.unlink()
        raise _Dropped("the server has no more of the file than is here")
    if status == httpx.codes.TOO_MANY_REQUESTS or status >= 500:
        raise _Dropped(f"the server answered {status}")
    if not answer.is_success:
        raise PullError(
            f"{_host(str(answer.url))} answered {status} {answer.reason_phrase} for the model's package"
        )


def _host(url: str) -> str:
    return httpx.URL(url).host


def _bytes_of(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0
