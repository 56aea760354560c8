"""Calls as a model writes them in Python: `get_weather(city="Oslo", days=3)`, with literals for arguments."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import NamedTuple

from .grammar import Malformed
from .tools import Tools
from .typed_values import json_text, parse_python, python_literal


class PythonCall(NamedTuple):
    """A call; `arguments` is the JSON text of an object."""

    name: str
    arguments: str


def read_calls(code: str, tools: Tools) -> list[PythonCall]:
    """The calls that stand in the code, one a line or in a list; `print(…)` around one is left away.

    Arguments without a name get theirs from the order in the tool's schema. Raises Malformed for all other code, and
    for a function that is no tool.
    """
    tree = parse_python(code.strip(), "exec")
    assert isinstance(tree, ast.Module)
    calls = [_call(node, tools) for statement in tree.body for node in _call_nodes(statement)]
    if not calls:
        raise Malformed
    return calls


def _call_nodes(statement: ast.stmt) -> Iterator[ast.Call]:
    if not isinstance(statement, ast.Expr):
        raise Malformed
    items = statement.value.elts if isinstance(statement.value, ast.List) else [statement.value]
    for item in items:
        if not isinstance(item, ast.Call):
            raise Malformed
        printed = item.args[0] if _name(item) == "print" and len(item.args) == 1 else None
        yield printed if isinstance(printed, ast.Call) else item


def _name(call: ast.Call) -> str:
    match call.func:
        case ast.Name(id=name):
            return name
        case ast.Attribute(value=ast.Name(id=owner), attr=name):
            return f"{owner}.{name}"
        case _:
            raise Malformed


def _call(call: ast.Call, tools: Tools) -> PythonCall:
    name = _name(call)
    order = tools.argument_names(name)
    if name not in tools or len(call.args) > len(order):
        raise Malformed
    values = dict(zip(order, call.args, strict=False))
    for keyword in call.keywords:
        if keyword.arg is None or keyword.arg in values:
            raise Malformed
        values[keyword.arg] = keyword.value
    return PythonCall(name, json_text({key: python_literal(value) for key, value in values.items()}))
