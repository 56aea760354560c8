"""Finds a wheel through the package index that pip is configured with.

pip is asked, not imported: mirrors, extra indexes, find-links folders and constraints then count exactly as
they do for `pip install`. Its answer is an installation report
(https://pip.pypa.io/en/stable/reference/installation-report/).
"""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote, urlsplit
from urllib.request import url2pathname

from ..errors import PullError
from .catalogue import WheelFile

TIMEOUT_S = 600


@dataclass(frozen=True, slots=True)
class PipConfig:
    """What pip was told about connections: a file of certificates, a proxy, and the index addresses."""

    cert: str | None = None
    proxy: str | None = None
    indexes: tuple[str, ...] = ()

    def credentials(self, url: str) -> tuple[str, str] | None:
        """User and password of the configured index on the host of `url`; pip's report leaves them out."""
        for index in map(urlsplit, self.indexes):
            if index.username and index.hostname == urlsplit(url).hostname:
                return unquote(index.username), unquote(index.password or "")
        return None


def locate_wheel(wheel: WheelFile) -> str:
    """The address of the wheel: http(s), or file for a local index. Raises PullError with pip's own reason."""
    requirement = f"{wheel.package}=={wheel.version}"
    options = ["--dry-run", "--no-deps", "--ignore-installed", "--only-binary", ":all:", "--report", "-"]
    answer = _pip("install", "--quiet", *options, requirement)
    try:
        info = json.loads(answer)["install"][0]["download_info"]
        url = str(info["url"])
    except (ValueError, LookupError, TypeError) as error:
        raise PullError(f"pip's report about {requirement} could not be read: {error!r}") from None
    _refuse_other_digest(info, wheel)
    return url


def local_path(url: str) -> Path | None:
    """The path of a file: address, None for any other."""
    parts = urlsplit(url)
    return Path(url2pathname(parts.path)) if parts.scheme == "file" else None


def read_pip_config() -> PipConfig:
    """Reads `pip config list`; a name later in global, install, :env: outranks the same name before."""
    values: dict[str, str] = {}
    by_rank: dict[str, list[tuple[str, str]]] = {"global": [], "install": [], ":env:": []}
    for line in _pip("config", "list").splitlines():
        key, _, value = line.partition("=")
        section, _, option = key.rpartition(".")
        by_rank.get(section, []).append((option, value))
    for pairs in by_rank.values():
        values |= {option: str(ast.literal_eval(value)) for option, value in pairs}
    indexes = f"{values.get('index-url', '')} {values.get('extra-index-url', '')}".split()
    return PipConfig(values.get("cert"), values.get("proxy"), tuple(indexes))


def _refuse_other_digest(info: dict[str, dict[str, dict[str, str]]], wheel: WheelFile) -> None:
    offered = info.get("archive_info", {}).get("hashes", {}).get("sha256")
    if offered is not None and offered != wheel.sha256:
        raise PullError(
            f"The package index offers another {wheel.package} {wheel.version}: "
            f"sha256:{offered}, expected sha256:{wheel.sha256}"
        )


def _pip(*arguments: str) -> str:
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--no-input", *arguments]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
    except subprocess.TimeoutExpired:
        raise PullError(f"pip did not answer within {TIMEOUT_S} s") from None
    if done.returncode:
        raise PullError(f"pip could not find the model's package: {_pip_reason(done.stderr)}")
    return done.stdout


def _pip_reason(stderr: str) -> str:
    if "No module named pip" in stderr:
        return f"this Python has no pip; add it with `{sys.executable} -m ensurepip`"
    errors = [line.removeprefix("ERROR: ") for line in stderr.splitlines() if line.startswith("ERROR: ")]
    return errors[-1] if errors else (stderr.strip().splitlines() or ["no reason given"])[-1]
