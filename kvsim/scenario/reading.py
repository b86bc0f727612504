"""Scenario files: read, overridden from the command line, taken apart into variants, written again.

YAML is read as its version 1.2 has it: ``true`` and ``false`` alone are truth values, ``1e-3`` is a
number, and no plain text becomes a date or a number to base 60. Keys given twice are refused.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Hashable, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from kvsim.errors import KvsimError, Problems, nearest, show
from kvsim.scenario import Scenario
from kvsim.scenario.files import is_path
from kvsim.scenario.policies import POLICY_KEYS, with_policy_path
from kvsim.scenario.pool_rules import SIDES
from kvsim.scenario.validation import lay_over

FILE_BYTES_MAX = 2**20
"""Largest scenario file, bytes: larger workloads belong in a trace."""
DEPTH_MAX = 40
"""Deepest nesting of a scenario file."""
NUM_NODES_MAX = 200_000
"""Most values of a scenario file, with aliases written out."""


def load_scenario(
    path: Path | str, overrides: Sequence[str] = (), *, check_files: bool = True
) -> Scenario:
    """Read a scenario file.

    Args:
        path: the YAML file; paths in it are relative to its directory.
        overrides: ``dotted.key=value`` each, the value in YAML, laid over the base before variants.
            A path given here is relative to the current directory, or else to the file's.
        check_files: also report files it names that are not there.

    Raises:
        KvsimError: the file cannot be read or is not YAML.
        Problems: everything that is wrong with the scenario.
    """
    path = Path(path)
    data = _parse(_read(path), str(path))
    if not isinstance(data, dict):
        what = "is empty" if data is None else f"holds {show(data)}"
        remedy = "Write a mapping of keys, as in scenarios/reference.yaml."
        raise Problems(str(path), [f"{what}, not a scenario. {remedy}"])
    if overrides:
        data = _overridden(data, overrides, path)
    data.setdefault("name", path.stem)
    return Scenario.from_data(data, str(path), path.parent, check_files=check_files)


def expand_variants(scenario: Scenario) -> dict[str, Scenario]:
    """The scenarios to run, by variant: the overridden ones, or ``default`` where there are none.

    Raises:
        Problems: everything that is wrong with a variant.
    """
    base = base_data(scenario)
    expanded = {}
    for name, overrides in (scenario.variants or {"default": {}}).items():
        data, _ = lay_over(base, overrides)
        expanded[name] = Scenario.from_data(data, f"variants.{name}", scenario.directory)
    return expanded


def base_data(scenario: Scenario) -> dict[str, Any]:
    """What was written of a scenario but its variants and its sweep."""
    without = ("variants", "sweep")
    return {key: value for key, value in scenario.written().items() if key not in without}


def resolved_yaml(scenario: Scenario, directory: Path | None = None) -> str:
    """The scenario with every key spelled out, as a file that runs again.

    Args:
        scenario: what to write.
        directory: where the file will be; paths in it are written relative to it. Without it
            they are absolute.
    """

    def moved(path: str) -> str:
        file = (scenario.directory / path).resolve()
        return (file if directory is None else _relative(file, directory)).as_posix()

    return as_yaml(resolved_data(scenario, moved))


def shareable_yaml(scenario: Scenario) -> str:
    """The scenario with every key spelled out and files by their names: the same on any machine."""
    return as_yaml(resolved_data(scenario, lambda path: Path(path).name))


def as_yaml(data: Mapping[str, Any]) -> str:
    """Plain data as it stands in a scenario file, keys in their order."""
    return yaml.dump(dict(data), Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=100)


def resolved_data(scenario: Scenario, change_path: Callable[[str], str]) -> dict[str, Any]:
    """All keys of a scenario as plain data, with every path in it changed.

    Args:
        scenario: what to spell out.
        change_path: from a path, relative to the scenario's directory, to what stands for it.
    """
    data = scenario.resolved()
    sweep = data["sweep"] or {"grid": {}, "zip": {}, "list": []}
    for part in (data, *data["variants"].values(), *sweep["list"]):
        for key, value in part.items():
            part[key] = _with_paths(key, value, change_path)
    for axes in (sweep["grid"], sweep["zip"]):
        for key, values in axes.items():
            axes[key] = [_with_paths(key, value, change_path) for value in values]
    return data


_PLAIN_SCALARS = {
    "null": (r"~|null|Null|NULL|", ["~", "n", "N", ""]),
    "bool": (r"true|True|TRUE|false|False|FALSE", list("tTfF")),
    "int": (r"[-+]?[0-9][0-9_]*", list("-+0123456789")),
    "float": (
        r"[-+]?(\.[0-9]+|[0-9][0-9_]*(\.[0-9_]*)?)([eE][-+]?[0-9]+)?"
        r"|[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)",
        list("-+0123456789."),
    ),
    "merge": (r"<<", ["<"]),
}
"""The core schema of YAML 1.2, with underscores in numbers: pattern and first characters."""


def _resolvers() -> dict[str, list[tuple[str, re.Pattern[str]]]]:
    """The table that PyYAML looks plain scalars up in, by first character."""
    table: dict[str, list[tuple[str, re.Pattern[str]]]] = {}
    for tag, (pattern, first_characters) in _PLAIN_SCALARS.items():
        entry = (f"tag:yaml.org,2002:{tag}", re.compile(f"(?:{pattern})$"))
        for character in first_characters:
            table.setdefault(character, []).append(entry)
    return table


def _refused(text: str, node: yaml.Node) -> yaml.MarkedYAMLError:
    return yaml.MarkedYAMLError(problem=text, problem_mark=node.start_mark)


class _Loader(yaml.SafeLoader):
    yaml_implicit_resolvers = _resolvers()

    def construct_yaml_int(self, node: yaml.ScalarNode) -> int:
        return int(self.construct_scalar(node).replace("_", ""))

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        keys: dict[tuple[str, str], yaml.Node] = {}
        for key, _ in node.value:
            if not isinstance(key, yaml.ScalarNode):
                raise _refused("a list or mapping stands as a key", key)
            first = keys.setdefault((key.tag, key.value), key)
            if first is not key:
                line = first.start_mark.line + 1
                raise _refused(f"key {show(key.value)} is given twice, first in line {line}", key)
        return super().construct_mapping(node, deep)


_Loader.add_constructor("tag:yaml.org,2002:int", _Loader.construct_yaml_int)


class _Dumper(yaml.SafeDumper):
    # The same table, so that whatever it would read as another type is written in quotes.
    yaml_implicit_resolvers = _resolvers()

    def ignore_aliases(self, data: Any) -> bool:
        return True


def _read(path: Path) -> str:
    """The text of a file, or the reason why there is none."""
    if not path.is_file():
        if path.exists():
            raise KvsimError(f"{path}: is not a file. Give the path of a scenario file.")
        near = nearest(path.name, (file.name for file in path.parent.glob("*.y*ml")))
        advice = f"Did you mean '{path.with_name(near)}'?" if near else "Give the path of one."
        raise KvsimError(f"{path}: there is no such scenario file. {advice}")
    try:
        raw = path.read_bytes() if path.stat().st_size <= FILE_BYTES_MAX else None
    except OSError as error:
        raise KvsimError(f"{path}: cannot be read: {error.strerror}.") from None
    if raw is None:
        raise KvsimError(
            f"{path}: is larger than a scenario file may be ({FILE_BYTES_MAX} bytes). "
            "Put long workloads in a trace."
        )
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        text = f"{path}: line {line} is not UTF-8 text. Save the file as UTF-8."
        raise KvsimError(text) from None


def _parse(text: str, where: str) -> Any:
    """The data of YAML text; errors name line and column."""
    loader = None
    try:
        loader = _Loader(text)
        node = loader.get_single_node()
        if node is None:
            return None
        _bounded(node)
        return loader.construct_document(node)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        place = f"line {mark.line + 1}, column {mark.column + 1}: " if mark else ""
        raise KvsimError(f"{where}: {place}{error.problem or error.context}.") from None
    except yaml.reader.ReaderError as error:
        line = text.count("\n", 0, error.position) + 1
        raise KvsimError(
            f"{where}: line {line}: the character U+{ord(text[error.position]):04X} is not allowed "
            "in YAML. Is this a text file?"
        ) from None
    except RecursionError:
        raise KvsimError(f"{where}: is nested too deep. Use at most {DEPTH_MAX} levels.") from None
    except (yaml.YAMLError, ValueError, OverflowError) as error:
        raise KvsimError(f"{where}: is not YAML: {error}.") from None
    finally:
        if loader is not None:
            loader.dispose()


def _bounded(root: yaml.Node) -> None:
    """Refuse nesting and aliases that would grow without bound when they are written out."""
    sizes: dict[int, int] = {}
    open_nodes: set[int] = set()

    def size(node: yaml.Node, depth: int) -> int:
        if id(node) in open_nodes:
            raise _refused("an alias refers to what it stands in", node)
        if depth > DEPTH_MAX:
            raise _refused(f"nested deeper than {DEPTH_MAX} levels", node)
        if isinstance(node, yaml.ScalarNode):
            return 1
        if id(node) not in sizes:
            open_nodes.add(id(node))
            inner = node.value
            if isinstance(node, yaml.MappingNode):
                inner = [part for pair in node.value for part in pair]
            sizes[id(node)] = 1 + sum(size(part, depth + 1) for part in inner)
            open_nodes.discard(id(node))
        if sizes[id(node)] > NUM_NODES_MAX:
            text = f"more than {NUM_NODES_MAX} values, with aliases written out"
            raise _refused(text, node)
        return sizes[id(node)]

    size(root, 1)


def _overridden(data: dict[str, Any], overrides: Sequence[str], path: Path) -> dict[str, Any]:
    """The data with ``key=value`` laid over."""
    from_here = _from_here(path)
    problems = []
    for override in overrides:
        key, equals, text = override.partition("=")
        key = key.strip()
        place = f"--set {key}" if equals else f"--set {override}"
        if not equals or not key:
            problems.append(f"{place}: is no key=value. Write it as in cache.retention_interval=0.")
        elif not text.strip():
            problems.append(f"{place}: has no value. Write null for none.")
        elif key.split(".")[0] == "variants":
            problems.append(f"{place}: changes a variant. --set changes the base, before variants.")
        else:
            try:
                value = _parse(text, place)
            except KvsimError as error:
                problems.append(str(error))
                continue
            data, found = lay_over(data, {key: _with_paths(key, value, from_here)})
            problems += [f"--set {problem}" for problem in found]
    if problems:
        raise Problems(str(path), problems)
    return data


def _from_here(path: Path) -> Callable[[str], str]:
    """From a path on the command line to one that is relative to the scenario file's directory."""

    def moved(written: str) -> str:
        file = Path(written)
        return _relative(file, path.parent).as_posix() if file.is_file() else written

    return moved


def parse_axes(axes: Sequence[str], path: Path) -> dict[str, list[Any]]:
    """Axes of a sweep as written on the command line, ``key=[value, value]`` each in YAML.

    Args:
        axes: as written; a path is relative to the current directory, or else to the file's.
        path: the scenario file, which problems are reported under.

    Raises:
        Problems: everything that is wrong with them.
    """
    parsed: dict[str, list[Any]] = {}
    problems = []
    for axis in axes:
        key, equals, text = axis.partition("=")
        key = key.strip()
        place = f"--vary {key}"
        if not equals or not key:
            problems.append(f"--vary {axis}: is no key=[values]. Write it as in node.gpus=[4, 8].")
            continue
        try:
            values = _parse(text, place)
        except KvsimError as error:
            problems.append(str(error))
            continue
        if not isinstance(values, list) or not values:
            problems.append(f"{place}: {show(values)} is not a list of values. Write [a, b].")
        elif key in parsed:
            problems.append(f"{place}: is given twice. Give all values in one list.")
        else:
            parsed[key] = [_with_paths(key, value, _from_here(path)) for value in values]
    if problems:
        raise Problems(str(path), problems)
    return parsed


_POOLS = tuple(f"fleet.pools.{side}" for side in SIDES)
_WITH_PATHS = (
    *("workload", "model", "step_time", "cache", "offload", "fleet", "fleet.pools"),
    *_POOLS,
)
_OWN_CODE = {*POLICY_KEYS, *(f"{place}.router" for place in ("fleet", *_POOLS))}


def _with_paths(key: str, value: Any, change: Callable[[str], str]) -> Any:
    """The value of a dotted key, with the paths in it changed."""
    if key in _OWN_CODE:
        return with_policy_path(value, change)
    if key in _WITH_PATHS and isinstance(value, dict):
        return {inner: _with_paths(f"{key}.{inner}", part, change) for inner, part in value.items()}
    return change(value) if is_path(key, value) else value


def _relative(path: Path, directory: Path) -> Path:
    return Path(os.path.relpath(path, directory.resolve()))
