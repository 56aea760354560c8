"""Settings: one table of options, resolved once at start and never written again.

Each field of `Settings` is an option; its help, kind and limits are declared beside it and nowhere else.
The command line, the environment, `config.toml` and the documentation all read `OPTIONS`. Precedence:

    flag  >  environment AGENTSERVE_<NAME>  >  config.toml  >  default

A bad value stops the start, with its source, name and value. This file knows no folder and opens no
file but the one it is given.
"""

from __future__ import annotations

import dataclasses
import difflib
import ipaddress
import os
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from ..engine.protocol import REASONING_FORMATS, TOOL_FORMATS
from . import option_kinds as kinds
from .errors import ConfigError
from .generation.extensions import SALTS
from .option_kinds import Kind

Source = Literal["flag", "environment", "file", "default"]


@dataclass(frozen=True, slots=True)
class Option:
    """One setting as every surface sees it. `flag` is None when only the file can hold it."""

    name: str
    kind: Kind
    default: Any
    help: str
    file_only: bool = False

    @property
    def env(self) -> str | None:
        return None if self.file_only else f"AGENTSERVE_{self.name.upper()}"

    @property
    def flag(self) -> str | None:
        return None if self.file_only else "--" + self.name.replace("_", "-")


def _option(default: Any, kind: Kind, help: str, *, file_only: bool = False) -> Any:
    spec = {"kind": kind, "default": default, "help": help, "file_only": file_only}
    if isinstance(default, Mapping):
        return field(default_factory=dict, metadata=spec)
    return field(default=default, metadata=spec)


@dataclass(frozen=True, slots=True)
class Limits:
    """What one model takes on. 0 is no limit, but for `max_queue_depth` and `capsule_budget_bytes`."""

    max_queue_depth: int
    max_active_sessions: int
    max_prompt_tokens: int
    max_output_tokens: int
    max_body_bytes: int
    capsule_budget_bytes: int
    session_idle_ttl_s: float
    queue_wait_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """All settings of the daemon, valid together. Sizes are bytes, times seconds."""

    host: str = _option("127.0.0.1", kinds.text(), "Address to listen on.")
    port: int = _option(11435, kinds.integer(0, 65535), "Port to listen on; 0 takes a free one.")
    listen_all: bool = _option(False, kinds.switch(), "Allow a host that other machines can reach.")
    allowed_hosts: tuple[str, ...] = _option(
        (), kinds.names(), "Further Host headers to accept: host, host:port or [IPv6]; comma-separated."
    )
    model: str = _option("smollm2", kinds.text(), "Model that is loaded at start.")
    embedding_model: str = _option(
        "all-minilm", kinds.text(), "Model of embedding requests that name none; it is loaded when one comes."
    )
    embedding_cache_size: int = _option(
        1024, kinds.integer(0, 100_000), "Vectors that an embedding model remembers; 0 is none."
    )
    embed_timeout: float = _option(
        60.0, kinds.number(1, 600), "Seconds that an embedding request may take once its model is loaded."
    )
    device: str = _option("CPU", kinds.device(), "Device to run models on.")
    threads: int = _option(0, kinds.integer(0, 1024), "Inference threads; 0 lets the engine choose.")
    max_context: int = _option(0, kinds.integer(0), "Context length in tokens; 0 is the model's own.")
    kv_budget: int = _option(
        0, kinds.size(), "Memory for the KV cache, such as 4GB; 0 lets the engine choose."
    )
    exact: bool = _option(False, kinds.switch(), "Make logits independent of caching, at some speed.")
    strip_decorations: bool = _option(
        True, kinds.switch(), "Drop the headers, new in every session, that clients put before system texts."
    )
    minima: str = _option(
        "balanced",
        kinds.choice("kept", "balanced", "rounded"),
        "Minima of Q4_1 and Q4_K weights: kept is truest to the file, rounded is fastest.",
    )
    namespace_keys: tuple[str, ...] = _option(
        SALTS,
        kinds.some_of("prompt_cache_key", *SALTS),
        "Fields of a request that keep prefixes apart, the first that is given counts; comma-separated.",
    )
    capsule_budget: int = _option(
        2 << 30, kinds.size(), "Part of the KV cache for pins, at most half of it; 0 allows none."
    )
    capsule_disk: int = _option(
        8 << 30, kinds.size(), "Disk space for the prefixes of each model; 0 keeps none over a restart."
    )
    draft_tokens: int = _option(
        15,
        kinds.integer(0, 63),
        "Tokens that a step may draft for a request that does not say; 0 drafts none.",
    )
    max_draft_tokens: int = _option(
        15, kinds.integer(0, 63), "Most tokens that a step may draft; 0 turns speculation off."
    )
    max_body: int = _option(32 * 2**20, kinds.size(1), "Largest request body.")
    max_queue_depth: int = _option(64, kinds.integer(0), "Requests that may wait for one model.")
    queue_wait: float = _option(
        120.0, kinds.number(0, 86400), "Seconds of prompts that may be queued for one model; 0 is no limit."
    )
    max_active_sessions: int = _option(
        8, kinds.integer(1, 64), "Conversations that share one model at a time; further ones wait."
    )
    max_prompt_tokens: int = _option(
        0, kinds.integer(0), "Longest prompt in tokens; 0 is what the context holds."
    )
    max_output_tokens: int = _option(
        0, kinds.integer(0), "Most output tokens a request may ask for; 0 is what the context holds."
    )
    session_idle_ttl: float = _option(
        0.0, kinds.number(0), "Seconds after which an idle session loses its name; 0 is never."
    )
    drain_timeout: float = _option(30.0, kinds.number(0), "Seconds that running requests get at shutdown.")
    load_timeout: float = _option(300.0, kinds.number(1, 3600), "Seconds that loading a model may take.")
    stall_timeout: float = _option(
        120.0, kinds.number(0.1, 3600), "Seconds that one step may take before the worker is started anew."
    )
    max_loaded_models: int = _option(2, kinds.integer(1, 64), "Models that may be loaded at once.")
    heartbeat: float = _option(10.0, kinds.number(0.01, 3600), "Seconds of silence before a no-op event.")
    slow_reader_timeout: float = _option(
        30.0, kinds.number(0.01, 3600), "Seconds that an answer may wait to be read before it is cancelled."
    )
    receive_timeout: float = _option(
        60.0, kinds.number(0.01, 3600), "Seconds that a client may take to send a request."
    )
    max_connections: int = _option(512, kinds.integer(1, 65535), "Connections that may be open at once.")
    log_content: bool = _option(
        False, kinds.switch(), "Write prompts and answers into requests.jsonl; else they are never logged."
    )
    log_level: str = _option("info", kinds.choice("debug", "info", "warning", "error"), "Least level logged.")
    mock: bool = _option(False, kinds.switch(), "Serve only the built-in reference model (device mock).")
    reference_step: float = _option(
        0.0, kinds.number(0, 60), "Seconds that each step of the reference model takes, for tests."
    )
    unknown_model: str = _option(
        "error",
        kinds.choice("error", "default"),
        "What a request for a model that is not there gets: an error, or an answer of the default model.",
    )
    aliases: Mapping[str, str] = _option(
        {}, kinds.table(), "Names that clients may use for a model of the store.", file_only=True
    )
    tool_formats: Mapping[str, str] = _option(
        {},
        kinds.table(kinds.choice("auto", "none", *TOOL_FORMATS)),
        "How a model writes tool calls, by its name, where that can't be told from its template.",
        file_only=True,
    )
    reasoning_formats: Mapping[str, str] = _option(
        {},
        kinds.table(kinds.choice("auto", "none", *REASONING_FORMATS)),
        "How a model marks its reasoning, by its name.",
        file_only=True,
    )
    draft_models: Mapping[str, str] = _option(
        {},
        kinds.table(),
        "A smaller model with the same vocabulary that drafts for a model, by its name.",
        file_only=True,
    )
    sources: Mapping[str, Source] = field(default_factory=dict, repr=False, compare=False)

    def __post_init__(self) -> None:
        if not self.listen_all and not is_loopback(self.host):
            raise ConfigError(
                f"host {self.host} can be reached from other machines; add --listen-all to allow that"
            )

    @property
    def limits(self) -> Limits:
        """All limits of admission."""
        return Limits(
            max_queue_depth=self.max_queue_depth,
            max_active_sessions=self.max_active_sessions,
            max_prompt_tokens=self.max_prompt_tokens,
            max_output_tokens=self.max_output_tokens,
            max_body_bytes=self.max_body,
            capsule_budget_bytes=self.capsule_budget,
            session_idle_ttl_s=self.session_idle_ttl,
            queue_wait_s=self.queue_wait,
        )

    def source(self, name: str) -> Source:
        """Where the value of the option `name` came from."""
        return self.sources.get(name, "default")


OPTIONS: tuple[Option, ...] = tuple(
    Option(name=item.name, **item.metadata) for item in dataclasses.fields(Settings) if item.metadata
)
_BY_NAME = {option.name: option for option in OPTIONS}


def load_settings(
    flags: Mapping[str, Any] | None = None,
    environ: Mapping[str, str] | None = None,
    config_file: Path | None = None,
) -> Settings:
    """Resolves all sources into one `Settings`. A flag that is None was not given.

    Raises ConfigError for a value that does not parse, an unknown key, an unreadable file, or values that
    contradict each other.
    """
    layers: tuple[tuple[Source, dict[str, Any]], ...] = (
        ("file", _from_file(config_file)),
        ("environment", _from_environment(os.environ if environ is None else environ)),
        ("flag", _from_flags(flags or {})),
    )
    values: dict[str, Any] = {}
    sources: dict[str, Source] = {}
    for source, layer in layers:
        values.update(layer)
        sources.update(dict.fromkeys(layer, source))
    return Settings(**values, sources=sources)


def to_arguments(flags: Mapping[str, Any]) -> list[str]:
    """Flags as command-line arguments of `python -m agentserve.daemon`; None values are left out."""
    arguments: list[str] = []
    for name, value in flags.items():
        flag = _BY_NAME[name].flag
        if value is None or flag is None:
            continue
        if isinstance(value, bool):
            arguments.append(flag if value else flag.replace("--", "--no-", 1))
        else:
            arguments += [flag, ",".join(value) if isinstance(value, (list, tuple)) else str(value)]
    return arguments


def is_loopback(host: str) -> bool:
    """True if only this machine can reach a socket that is bound to `host`."""
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host == "localhost"


def _from_flags(flags: Mapping[str, Any]) -> dict[str, Any]:
    given = {name: value for name, value in flags.items() if value is not None}
    return {name: _parse(_BY_NAME[name], value, str(_BY_NAME[name].flag)) for name, value in given.items()}


def _from_environment(environ: Mapping[str, str]) -> dict[str, Any]:
    return {
        option.name: _parse(option, environ[option.env], option.env)
        for option in OPTIONS
        if option.env is not None and environ.get(option.env, "") != ""
    }


def _from_file(path: Path | None) -> dict[str, Any]:
    table = {} if path is None else _read_toml(path)
    for key in table:
        if key not in _BY_NAME:
            raise ConfigError(f"{path}: unknown key {key!r}{_nearest(key)}")
    return {key: _parse(_BY_NAME[key], value, f"{path}: {key}") for key, value in table.items()}


def _read_toml(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text("utf-8"))
    except FileNotFoundError:
        return {}
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: not valid TOML: {error}") from None
    except OSError as error:
        raise ConfigError(
            f"{path}: can't be read ({error.strerror}); make it a readable file, or move it with AGENTSERVE_HOME"
        ) from None


def _parse(option: Option, raw: Any, where: str) -> Any:
    try:
        return option.kind.parse(raw)
    except ValueError as error:
        raise ConfigError(f"{where}: {raw!r} is wrong: {error}") from None


def _nearest(key: str) -> str:
    near = difflib.get_close_matches(key.replace("-", "_"), _BY_NAME, n=1)
    return f"; did you mean {near[0]!r}?" if near else f"; valid keys are {', '.join(sorted(_BY_NAME))}"
