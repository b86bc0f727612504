"""`kvsim routers`."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer

from kvsim.cli.terminal import Json, Trust, make_console, print_json, print_table

if TYPE_CHECKING:
    from kvsim.routing import Router


def routers(
    name: Annotated[
        str | None,
        typer.Argument(
            metavar="[NAME]",
            help="A router, or one's own: module:Class, path.py:Class.",
        ),
    ] = None,
    as_json: Json = False,
    trust: Trust = False,
) -> None:
    """List the routers there are, or show one with its parameters and source."""
    from kvsim.routing import router_class, router_names

    if name is not None:
        _show(name, router_class(name), as_json)
        return
    found = {known: router_class(known) for known in router_names()}
    if as_json:
        print_json([_data(known, router) for known, router in found.items()])
    else:
        _list(found)


def _list(found: dict[str, type[Router[Any]]]) -> None:
    from rich.table import Table

    from kvsim.routing import description

    console = make_console()
    table = Table(box=None, pad_edge=False)
    for column in ("name", "what it does"):
        table.add_column(column, no_wrap=column == "name")
    for name, router in found.items():
        table.add_row(name, description(router))
    print_table(console, table)
    console.print(
        "\nkvsim routers NAME shows one with its parameters and source. "
        "One's own is named module:Class or path.py:Class.",
        highlight=False,
    )


def _show(name: str, router: type[Router[Any]], as_json: bool) -> None:
    from rich.table import Table

    data = _data(name, router)
    if as_json:
        print_json(data)
        return
    console = make_console()
    console.print(f"{name}\n{data['description']}\n\nsource  {data['source']}\n", highlight=False)
    if not data["parameters"]:
        sys.stdout.write("It has no parameters.\n")
        return
    table = Table(box=None, pad_edge=False)
    for column in ("parameter", "default", "what it is"):
        table.add_column(column, no_wrap=column == "parameter")
    for parameter in data["parameters"]:
        table.add_row(parameter["name"], _written(parameter["default"]), parameter["description"])
    print_table(console, table)


def _data(name: str, router: type[Router[Any]]) -> dict[str, Any]:
    from kvsim.routing import description

    kind = router.Parameters
    defaults = {
        key: field.get_default(call_default_factory=True)
        for key, field in kind.model_fields.items()
        if not field.is_required()
    }
    plain = kind.model_construct(**defaults).model_dump(mode="json", include=set(defaults))
    return {
        "name": name,
        "description": description(router),
        "source": router.source,
        "parameters": [
            {"name": key, "default": plain.get(key), "description": field.description or ""}
            for key, field in kind.model_fields.items()
        ],
    }


def _written(value: object) -> str:
    """A value as it stands in a scenario."""
    if value is None:
        return "null"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key}: {_written(inner)}" for key, inner in value.items()) + "}"
    return f"{value:g}" if isinstance(value, float) else str(value)
