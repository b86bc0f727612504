"""`scenarios/reference.yaml` against the code: every key, its default and its choices."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, get_args

import pytest
import yaml

from kvsim.scenario import Scenario
from kvsim.scenario.reading import load_scenario
from kvsim.scenario.validation import Section, sections

REFERENCE = Path(__file__).parents[2] / "scenarios" / "reference.yaml"
SECTIONS = list(sections(Scenario))


def written_mappings() -> list[tuple[str, dict[str, tuple[Any, str]]]]:
    """Every mapping of the file and of its commented alternatives: place, {key: (value, comment)}.

    The comment is what stands behind the key and on the lines of comment below it.
    """
    lines = REFERENCE.read_text().splitlines()
    documents = [lines]
    # An alternative is a block of comment that starts with a section's name.
    for number, line in enumerate(lines):
        if re.fullmatch(
            r"# (model|node|fleet|engine|offload|step_time|workload|sweep|objective):.*", line
        ):
            block = []
            for inner in lines[number:]:
                if not inner.startswith("# "):
                    break
                block.append(inner.removeprefix("# "))
            documents.append(block)
    found: list[tuple[str, dict[str, tuple[Any, str]]]] = []

    def comment(document: list[str], number: int) -> str:
        parts = [document[number].partition("# ")[2]]
        for line in document[number + 1 :]:
            if not re.match(r"\s{8,}#", line):
                break
            parts.append(line.strip().removeprefix("#").strip())
        return " ".join(parts)

    def walk(document: list[str], node: yaml.Node, place: str) -> None:
        if isinstance(node, yaml.SequenceNode):
            for part in node.value:
                walk(document, part, place)
        if isinstance(node, yaml.MappingNode):
            entries = {}
            for key, value in node.value:
                text = yaml.serialize(value)
                entries[key.value] = (
                    yaml.safe_load(text),
                    comment(document, key.start_mark.line),
                )
                walk(document, value, f"{place}.{key.value}" if place else key.value)
            found.append((place, entries))

    for document in documents:
        root = yaml.compose("\n".join(document))
        assert root is not None
        walk(document, root, "")
    return found


MAPPINGS = written_mappings()


def written(place: str, section: type[Section]) -> dict[str, tuple[Any, str]]:
    # A section that can stand in several places is written in one of them.
    places = {at for at, other in SECTIONS if other is section}
    exact = [
        keys for at, keys in MAPPINGS if at in places and keys.keys() == section.model_fields.keys()
    ]
    assert len(exact) == 1, (
        f"{place or 'top'}: no mapping with exactly {list(section.model_fields)}"
    )
    return exact[0]


@pytest.mark.parametrize(
    ("place", "section"), SECTIONS, ids=lambda part: getattr(part, "__name__", part)
)
def test_every_key_is_written_with_its_default(place: str, section: type[Section]) -> None:
    keys = written(place, section)
    values = section.model_validate({key: value for key, (value, _) in keys.items()})
    for key, field in section.model_fields.items():
        value, comment = keys[key]
        assert comment, f"{place}.{key} has no comment"
        if field.is_required():
            assert "required" in comment, f"{place}.{key}"
        elif "default null" in comment:
            assert field.default is None, f"{place}.{key}"
        elif isinstance(value, dict) and (named := re.match(r"default (\S+);", comment)):
            assert field.default == named[1], f"{place}.{key}"
        elif not isinstance(field.default, Section):
            assert getattr(values, key) == field.default, f"{place}.{key}: {value}"
            assert "required" not in comment or "required for" in comment, f"{place}.{key}"


@pytest.mark.parametrize(
    ("place", "section"), SECTIONS, ids=lambda part: getattr(part, "__name__", part)
)
def test_choices_and_units_are_named(place: str, section: type[Section]) -> None:
    for key, (value, comment) in written(place, section).items():
        text = f"{value} {comment}"
        for choice in literal_choices(section.model_fields[key].annotation):
            assert str(choice) in text, f"{place}.{key}: {choice}"
        if key.endswith("_s"):
            assert "seconds" in comment, f"{place}.{key}"
        if "bytes" in key or key == "activation_reserve":
            assert "bytes" in comment, f"{place}.{key}"
        if key.endswith(("_tokens", "_len")) or key == "block_size":
            assert "tokens" in comment, f"{place}.{key}"


def literal_choices(annotation: Any) -> list[Any]:
    if getattr(annotation, "__origin__", None) is not None or get_args(annotation):
        inner = [choice for part in get_args(annotation) for choice in literal_choices(part)]
        if "Literal" in str(getattr(annotation, "__origin__", "")):
            return [choice for choice in get_args(annotation) if choice is not None]
        return inner
    return []


@pytest.mark.parametrize("place_section", SECTIONS, ids=lambda part: part[1].__name__)
def test_every_field_has_a_description(place_section: tuple[str, type[Section]]) -> None:
    for key, field in place_section[1].model_fields.items():
        assert field.description, key


def test_it_is_a_scenario() -> None:
    scenario = load_scenario(REFERENCE)
    assert scenario.name == "reference"
    assert scenario.resolved().keys() == Scenario.model_fields.keys()


def test_the_catalog_is_named() -> None:
    from kvsim import catalog

    text = REFERENCE.read_text()
    for name in catalog.link_names():
        assert name in text
