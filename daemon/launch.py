"""From a command line to a running daemon: settings, folders, log, lock, socket, signals.

`python -P -m agentserve.daemon [--foreground] [--report-fd N] [options]`. It exits with 0 after it was told
to stop, 1 when it can't start or the default model can't be loaded, 2 when a setting is wrong. The reason is
the last line on standard error, and the last line on the report pipe where there is one (see `startup`).
"""

from __future__ import annotations

import argparse
import asyncio
import errno
import logging
import os
import signal
import socket
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager

from .. import __version__
from .config import OPTIONS, Option, Settings, is_loopback, load_settings
from .errors import AgentserveError, StartError
from .instance import Instance, announced, instance_lock
from .logs import configure_logging
from .paths import Paths, resolve_paths
from .server import Daemon
from .startup import Reporter, Startup

_BACKLOG = 512
# What the system keeps for a client that does not read; left alone, it grows to megabytes.
_SEND_BUFFER_BYTES = 256 * 1024


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the daemon until it is told to stop; returns the exit code."""
    options = vars(_parser().parse_args(arguments))
    foreground = options.pop("foreground")
    startup = Startup(Reporter(options.pop("report_fd")))
    try:
        paths = resolve_paths()
        settings = load_settings(options, config_file=paths.config_file)
        _serve(settings, paths, startup, foreground=foreground)
    except AgentserveError as error:
        startup.failed(str(error))
        print(f"agentserve: {error}", file=sys.stderr)
        return error.exit_code
    startup.reporter.close()
    return 0


def bind(host: str, port: int) -> socket.socket:
    """A listening TCP socket; port 0 takes a free one. Raises StartError."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    except (socket.gaierror, UnicodeError):
        raise StartError(f"The host {host!r} has no address; check the setting host") from None
    listener = socket.socket(family, kind, protocol)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _SEND_BUFFER_BYTES)
        listener.bind(address)
        listener.listen(_BACKLOG)
    except OSError as error:
        listener.close()
        raise StartError(_bind_failure(host, port, error)) from None
    return listener


def _bind_failure(host: str, port: int, error: OSError) -> str:
    if error.errno == errno.EADDRINUSE:
        return f"Port {port} on {host} is in use; stop what uses it, or choose another with --port"
    if error.errno == errno.EACCES:
        return f"Port {port} needs more rights than this user has; choose one above 1023 with --port"
    if error.errno == errno.EADDRNOTAVAIL:
        return f"This machine does not have the address {host}; check the setting host"
    return f"Can't listen on {host} port {port}: {error.strerror}"


def _serve(settings: Settings, paths: Paths, startup: Startup, *, foreground: bool) -> None:
    with ExitStack() as held:
        with _one_line_errors(paths):
            _prepare_folders(settings, paths, foreground=foreground)
            held.enter_context(instance_lock(paths))
            listener = held.enter_context(bind(settings.host, settings.port))
            port = listener.getsockname()[1]
            instance = Instance(os.getpid(), settings.host, port, time.time(), __version__)
            held.enter_context(announced(paths, instance))
        _log_start(settings, port)
        asyncio.run(_run(Daemon(settings, paths, listener, startup)))


def _prepare_folders(settings: Settings, paths: Paths, *, foreground: bool) -> None:
    for folder in (paths.runtime_dir, paths.log_dir):
        folder.mkdir(parents=True, exist_ok=True)
    configure_logging(settings.log_level, None if foreground else paths.daemon_log)


def _log_start(settings: Settings, port: int) -> None:
    log = logging.getLogger("agentserve.daemon")
    log.info("agentserve %s listens on %s port %d (pid %d)", __version__, settings.host, port, os.getpid())
    if not is_loopback(settings.host):
        log.warning("%s can be reached from other machines, and any of them may use it", settings.host)
    if not settings.max_draft_tokens:
        log.warning("speculation is off: max_draft_tokens is 0")


async def _run(daemon: Daemon) -> None:
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, daemon.request_shutdown, True)
    await daemon.run()


@contextmanager
def _one_line_errors(paths: Paths) -> Iterator[None]:
    """Turns what the system says about folders and disks into one line that says what to do."""
    try:
        yield
    except OSError as error:
        where = error.filename or paths.runtime_dir
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            advice = "the disk is full; free some space, or move it with AGENTSERVE_HOME"
        elif error.errno in (errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR, errno.EEXIST):
            advice = f"{error.strerror}; make the folder writable, or move it with AGENTSERVE_HOME"
        else:
            advice = f"{error.strerror or error}; choose another folder with AGENTSERVE_HOME"
        raise StartError(f"Can't write {where}: {advice}") from error


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="agentserve.daemon", allow_abbrev=False)
    parser.add_argument("--foreground", action="store_true", help="Log to standard error.")
    parser.add_argument("--report-fd", type=int, help="Descriptor of a pipe for start progress.")
    for option in OPTIONS:
        _add_option(parser, option)
    return parser


def _add_option(parser: argparse.ArgumentParser, option: Option) -> None:
    if option.flag is None:
        return
    if option.kind.python is bool:
        parser.add_argument(option.flag, action=argparse.BooleanOptionalAction, help=option.help)
    else:
        parser.add_argument(option.flag, help=option.help)
