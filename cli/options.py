"""Turns the daemon's table of options into command-line options, so that each is declared once."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Annotated, Any

import typer

from ..daemon.config import OPTIONS, Option

Flags = dict[str, Any]
"""Option name to what the user typed; options that were not typed are absent."""


def takes_settings(command: Callable[..., None]) -> Callable[..., None]:
    """Adds an option for each setting; the command receives those that were typed as `flags`.

    Their values stay text: `load_settings` parses them like those of every other source.
    """

    @functools.wraps(command)
    def run(**arguments: Any) -> None:
        flags = {name: arguments.pop(name) for name in names}
        command(**arguments, flags={name: value for name, value in flags.items() if value is not None})

    own = inspect.signature(command, eval_str=True).parameters.values()
    settings = [_parameter(option) for option in OPTIONS if option.flag is not None]
    names = [parameter.name for parameter in settings]
    parameters = [parameter for parameter in own if parameter.name != "flags"] + settings
    run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    return run


def _parameter(option: Option) -> inspect.Parameter:
    is_switch = option.kind.python is bool
    flag = f"{option.flag}/{str(option.flag).replace('--', '--no-', 1)}" if is_switch else option.flag
    about = typer.Option(
        flag,
        help=f"{option.help} [{option.env}; default {_shown(option)}]",
        metavar=None if is_switch else option.kind.name.upper(),
        show_default=False,
    )
    kind: Any = Annotated[(bool if is_switch else str) | None, about]
    return inspect.Parameter(option.name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=kind)


def _shown(option: Option) -> str:
    if option.kind.name == "size" and option.default:
        return f"{option.default // 2**20}MiB"
    if isinstance(option.default, tuple):
        return ",".join(option.default) or "none"
    if isinstance(option.default, bool):
        return "on" if option.default else "off"
    return str(option.default)
