"""up, down and restart: the life of the daemon process."""

from __future__ import annotations

import os
import signal
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from ..daemon.client import DaemonClient
from ..daemon.config import Settings, load_settings
from ..daemon.errors import AgentserveError, NotRunning, StartError
from ..daemon.paths import Paths, resolve_paths
from . import output
from .diagnostics import say
from .launch import daemon_command, start_detached, startup_text
from .options import Flags
from .progress import progress

POLL_S = 0.05
NOW_WAIT_S = 10.0
MARGIN_S = 20.0


@dataclass(frozen=True, slots=True)
class _Started:
    """The flags a daemon was started with, kept beside its instance file so that a restart keeps them."""

    pid: int
    flags: Flags


def up(
    foreground: Annotated[
        bool, typer.Option("--foreground", help="Stay in this terminal; Ctrl-C stops.")
    ] = False,
    *,
    flags: Flags,
) -> None:
    """Start the daemon, and wait until it is ready to answer.

    Prints the variables that point an agent at it: eval "$(agentserve up)" sets them.
    """
    paths = resolve_paths()
    load_settings(flags, config_file=paths.config_file)
    client = running_client(paths)
    if client is not None:
        hint = "; `agentserve restart` applies other options" if flags else ""
        say(f"agentserve already runs on port {client.port}{hint}")
        wait_until_ready(client)
    elif foreground:
        _run_in_foreground(flags)
    else:
        client = _start_or_join(paths, flags)
    if client is not None:
        _print_exports(client)


def down(
    now: Annotated[bool, typer.Option("--now", help="End running requests instead of waiting.")] = False,
) -> None:
    """Stop the daemon after its running requests."""
    paths = resolve_paths()
    client = running_client(paths)
    if client is None:
        say("agentserve is not running")
        return
    stop_daemon(paths, client, now=now)
    say("agentserve has stopped")


def restart(
    now: Annotated[bool, typer.Option("--now", help="End running requests instead of waiting.")] = False,
    *,
    flags: Flags,
) -> None:
    """Stop the daemon and start it again with the options it had; those given here replace them."""
    paths = resolve_paths()
    client = running_client(paths)
    merged = flags
    if client is not None:
        merged = _flags_of(paths, client) | flags
        load_settings(merged, config_file=paths.config_file)
        stop_daemon(paths, client, now=now)
    _print_exports(start_daemon(paths, merged))


def running_client(paths: Paths) -> DaemonClient | None:
    """The client of the running daemon, or None."""
    try:
        return DaemonClient.discover(paths)
    except NotRunning:
        return None


def start_daemon(paths: Paths, flags: Flags) -> DaemonClient:
    """Starts a detached daemon and says what it serves. Raises StartError, KeyboardInterrupt."""
    try:
        with progress() as report:
            report("starting the daemon", 0, 0)
            ready = start_detached(flags, report)
    except KeyboardInterrupt:
        say("Interrupted; no daemon was left running")
        raise
    client = DaemonClient.discover(paths)
    _remember(paths, _Started(ready.pid, flags))
    _say_ready(client)
    return client


def wait_until_ready(client: DaemonClient) -> None:
    """Waits for a daemon that somebody else started. Raises StartError with its reason when it fails."""
    with progress() as report:
        while (startup := client.status().startup).phase != "ready":
            if startup.phase == "failed":
                raise StartError(startup.error or "The daemon could not start; see `agentserve logs`")
            report(startup_text(startup), startup.bytes_done, startup.bytes_total)
            time.sleep(POLL_S)


def stop_daemon(paths: Paths, client: DaemonClient, *, now: bool) -> None:
    """Blocks until the daemon is gone. Raises AgentserveError when it does not go."""
    instance = client.instance
    assert instance is not None
    limit_s = NOW_WAIT_S if now else _settings_of(paths, client).drain_timeout + MARGIN_S
    try:
        client.shutdown(drain=not now)
    except AgentserveError:
        # It does not answer, so it has to be told by signal.
        _signal(instance.pid, signal.SIGTERM)
    with progress() as report:
        report("stopping" if now else "stopping after the running requests", 0, 0)
        if _is_gone(paths, instance.pid, limit_s):
            return
    if not now:
        raise AgentserveError(
            f"agentserve (pid {instance.pid}) has not stopped within {limit_s:.0f} s; use `agentserve down --now`"
        )
    _signal(instance.pid, signal.SIGKILL)
    if not _is_gone(paths, instance.pid, NOW_WAIT_S):
        raise AgentserveError(f"agentserve (pid {instance.pid}) can't be ended")
    say(f"agentserve (pid {instance.pid}) did not answer and was killed")


def _run_in_foreground(flags: Flags) -> None:
    command = [*daemon_command(flags), "--foreground"]
    os.execv(command[0], command)


def _start_or_join(paths: Paths, flags: Flags) -> DaemonClient:
    """Starts the daemon, or waits for the one that another `up` started in the same moment."""
    try:
        return start_daemon(paths, flags)
    except StartError:
        client = running_client(paths)
        if client is None:
            raise
        wait_until_ready(client)
        return client


def _say_ready(client: DaemonClient) -> None:
    models = [worker.model for worker in client.status().workers if worker.model]
    served = ", ".join(f"{model.name} on {model.device}" for model in models)
    say(f"agentserve is ready: {served} (port {client.port})")


def _print_exports(client: DaemonClient) -> None:
    output.line(f"export OPENAI_BASE_URL={client.base_url}")
    output.line("export OPENAI_API_KEY=local")


def _is_gone(paths: Paths, pid: int, limit_s: float) -> bool:
    deadline = time.monotonic() + limit_s
    while time.monotonic() < deadline:
        client = running_client(paths)
        if client is None or client.instance is None or client.instance.pid != pid:
            return True
        time.sleep(POLL_S)
    return False


def _signal(pid: int, number: signal.Signals) -> None:
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return
    except PermissionError:
        raise StartError(f"agentserve (pid {pid}) belongs to another user") from None


def _settings_of(paths: Paths, client: DaemonClient) -> Settings:
    return load_settings(_flags_of(paths, client), config_file=paths.config_file)


def _flags_of(paths: Paths, client: DaemonClient) -> Flags:
    import msgspec

    try:
        started = msgspec.json.decode(_memory(paths).read_bytes(), type=_Started)
    except (OSError, msgspec.MsgspecError):
        return {}
    return started.flags if client.instance and started.pid == client.instance.pid else {}


def _remember(paths: Paths, started: _Started) -> None:
    import msgspec

    _memory(paths).write_bytes(msgspec.json.encode(started))


def _memory(paths: Paths) -> Path:
    return paths.runtime_dir / "started.json"
