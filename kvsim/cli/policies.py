"""`kvsim policies`."""

from __future__ import annotations

import inspect
import sys
from typing import Annotated, Any

import typer

from kvsim.cli.terminal import Json, Trust, make_console, print_json
from kvsim.errors import KvsimError, unknown_name


def policies(
    name: Annotated[
        str | None, typer.Argument(metavar="[NAME]", help="Show this one, with its text.")
    ] = None,
    trust: Trust = False,
    as_json: Json = False,
) -> None:
    """List free-queue orders, retention and host evictions; with a name, its parameters and text.

    NAME may be your own: path/to/file.py:name, or module:name of an installed package.
    """
    found = [_described(kind, known) for kind, known in _named(name)]
    if as_json:
        print_json(found)
    elif name is None:
        _list(found)
    else:
        _show(found)


def _named(name: str | None) -> list[tuple[str, str]]:
    """Kinds and names that are meant."""
    from kvsim.policies.contract import KINDS
    from kvsim.policies.finding import ENGINE_NAMES, known_policies

    listed = [
        (kind, known)
        for kind in KINDS
        for known in (*ENGINE_NAMES.get(kind, ()), *known_policies(kind))
    ]
    if name is None:
        return listed
    if ":" in name:
        return [(_kind_of(name), name)]
    meant = [(kind, known) for kind, known in listed if known == name]
    if not meant:
        raise KvsimError(unknown_name("policy", name, [known for _, known in listed]))
    return meant


def _kind_of(name: str) -> str:
    """Of which kind the policy in a file or module is."""
    from kvsim.policies.contract import KINDS
    from kvsim.policies.finding import find_policy

    said = ""
    for kind in KINDS:
        try:
            find_policy(kind, name)
        except ValueError as error:
            said = said if "belongs here" in str(error) else str(error)
            continue
        return kind
    raise KvsimError(said)


def _described(kind: str, name: str) -> dict[str, Any]:
    from kvsim.policies.contract import KEYS, KINDS
    from kvsim.policies.finding import ENGINE_NAMES, find_policy
    from kvsim.policies.free_queue import FREE_QUEUE_POLICIES

    key = {"eviction": "offload.eviction"}.get(KEYS[kind], f"cache.{KEYS[kind]}")
    if name in ENGINE_NAMES.get(kind, ()):
        order = FREE_QUEUE_POLICIES[name]
        return {
            "name": name,
            "kind": KINDS[kind],
            "key": key,
            "description": order.description,
            "source": "vLLM",
            "parameters": {},
            "text": "",
        }
    try:
        policy = find_policy(kind, name).policy
    except ValueError as error:
        raise KvsimError(str(error)) from None
    try:
        text = inspect.getsource(policy.function)
    except OSError:
        text = ""
    return {
        "name": name,
        "kind": KINDS[kind],
        "key": key,
        "description": policy.description,
        "source": policy.source,
        "parameters": {
            parameter_name: {
                "default": parameter.default,
                "unit": parameter.unit,
                "low": parameter.low,
                "high": parameter.high,
                "description": parameter.description,
            }
            for parameter_name, parameter in policy.parameters.items()
        },
        "text": text,
    }


def _list(found: list[dict[str, Any]]) -> None:
    from rich import box
    from rich.table import Table

    console = make_console()
    for key in dict.fromkeys(one["key"] for one in found):
        table = Table(
            box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False, show_edge=False, expand=False
        )
        table.add_column(key, no_wrap=True)
        table.add_column("what leaves first, or what is kept", overflow="fold")
        for one in found:
            if one["key"] == key:
                told = ", ".join(one["parameters"])
                table.add_row(one["name"], one["description"] + (f" ({told})" if told else ""))
        console.print(table)
        console.print()
    console.print(
        "In brackets: parameters, as in {name: lfu, half_life: 60 s}. More: kvsim policies NAME.",
        highlight=False,
        markup=False,
    )


def _show(found: list[dict[str, Any]]) -> None:
    for number, one in enumerate(found):
        lines = ["", ""] if number else []
        lines += [
            f"{one['name']}, a {one['kind']} ({one['key']})",
            f"  {one['description']}",
            f"  source: {one['source']}",
        ]
        for name, parameter in one["parameters"].items():
            unit = f" {parameter['unit']}" if parameter["unit"] else ""
            lines.append(
                f"  {name}: {parameter['description']} "
                f"(default {parameter['default']:g}{unit}, {parameter['low']:g} to "
                f"{parameter['high']:g})"
            )
        if one["text"]:
            lines += ["", one["text"].rstrip()]
        sys.stdout.write("\n".join(lines) + "\n")
