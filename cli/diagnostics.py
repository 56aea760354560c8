"""The only writer of standard error, and the one place where an exception becomes an exit code.

0    done
1    failed: the message says why and what to do
2    wrong usage: an unknown option, a bad setting in a flag, the environment or config.toml
3    the command needs the daemon and there is none
130  interrupted with Ctrl-C
141  whoever read our output closed it
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable

from ..daemon.errors import AgentserveError
from . import output

FAILED = 1


def say(text: str) -> None:
    """One line for a person; into nothing where standard error is closed."""
    if sys.stderr is None:
        return
    sys.stderr.write(f"{text}\n")
    sys.stderr.flush()


def is_terminal() -> bool:
    """True if a person sees standard error now, so that a moving display makes sense."""
    return sys.stderr is not None and sys.stderr.isatty() and os.environ.get("TERM") != "dumb"


def guarded(run: Callable[[], object]) -> int:
    """Runs a command to its end; returns the exit code after saying what went wrong. Raises SystemExit."""
    output.occupy_closed()
    try:
        try:
            run()
        finally:
            output.flush()
    except AgentserveError as error:
        say(f"Error: {error}")
        return error.exit_code
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        say(f"Error: {where}{error.strerror or error}")
        return FAILED
    return 0
