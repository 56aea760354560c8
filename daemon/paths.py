"""Where agentserve keeps things on this machine. `AGENTSERVE_HOME` puts everything below one folder."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from platformdirs import PlatformDirs


@dataclass(frozen=True, slots=True)
class Paths:
    """All folders and files; nothing is created by looking at them."""

    config_dir: Path
    data_dir: Path
    cache_dir: Path
    log_dir: Path
    runtime_dir: Path
    models: Path

    @property
    def config_file(self) -> Path:
        return self.config_dir / "config.toml"

    @property
    def compile_cache(self) -> Path:
        return self.cache_dir / "compiled"

    @property
    def capsules(self) -> Path:
        return self.data_dir / "capsules"

    @property
    def daemon_log(self) -> Path:
        return self.log_dir / "daemon.log"

    @property
    def request_log(self) -> Path:
        """One JSON line for each request that has ended."""
        return self.log_dir / "requests.jsonl"

    @property
    def instance_file(self) -> Path:
        """Pid, address and start time of the running daemon, as JSON."""
        return self.runtime_dir / "daemon.json"

    @property
    def lock_file(self) -> Path:
        """Held with flock by the running daemon for as long as it lives."""
        return self.runtime_dir / "daemon.lock"


def resolve_paths(environ: os._Environ[str] | dict[str, str] | None = None) -> Paths:
    """The folders for this user: `AGENTSERVE_HOME`, else the platform's; `AGENTSERVE_MODELS` moves the store."""
    environ = os.environ if environ is None else environ
    home = environ.get("AGENTSERVE_HOME")
    models = environ.get("AGENTSERVE_MODELS")
    if home:
        base = Path(home).expanduser().absolute()
        config, data, cache, log, runtime = (base / n for n in ("config", "data", "cache", "log", "run"))
    else:
        dirs = PlatformDirs("agentserve", appauthor=False)
        config, data, cache = dirs.user_config_path, dirs.user_data_path, dirs.user_cache_path
        log, runtime = dirs.user_log_path, _runtime_dir(environ, dirs)
    store = Path(models).expanduser().absolute() if models else data / "models"
    return Paths(config, data, cache, log, runtime, store)


def _runtime_dir(environ: os._Environ[str] | dict[str, str], dirs: PlatformDirs) -> Path:
    """Where the session's own folder is missing, as in containers, the state folder holds the lock.

    The session's folder is found without its variable too, so that a cron job meets the same daemon.
    """
    session = Path(environ.get("XDG_RUNTIME_DIR") or f"/run/user/{os.getuid()}")
    return session / "agentserve" if session.is_dir() else dirs.user_state_path / "run"
