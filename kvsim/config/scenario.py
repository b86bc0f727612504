"""The scenario: its parts together, checked all at once, and what follows from them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

from pydantic import AfterValidator, BeforeValidator, Discriminator, Field, PrivateAttr, Tag

from kvsim import catalog
from kvsim.catalog.sizes import BlockSizes, block_sizes
from kvsim.config import rules
from kvsim.config.fields import TOKENS_MAX, DirectoryName, kind_of
from kvsim.config.model import CustomModel
from kvsim.config.offload import CpuOffload, MooncakeOffload
from kvsim.config.parts import (
    PROFILE_DEFAULT,
    Cache,
    ConstantStepTime,
    Engine,
    Node,
    Objective,
    Output,
    RooflineStepTime,
)
from kvsim.config.sweep import Sweep, broken_sweep
from kvsim.config.synthetic import SyntheticWorkload
from kvsim.config.validation import Problem, Section, examine, lay_over, without_odd_keys
from kvsim.config.workload import ScriptWorkload, TraceWorkload
from kvsim.errors import Problems, UnknownNameError, show
from kvsim.policies.profiles import PROFILES

_REMEDY = "Write a mapping with name:, model:, node: and workload:, as in scenarios/reference.yaml."
# To look for further problems with, where a key that has no default is missing or wrong.
_STAND_INS = {
    "name": "scenario",
    "model": {"groups": [{"kind": "full", "block_size": 1}]},
    "workload": {"kind": "trace", "path": "trace"},
}


def _catalog_model(value: str) -> str:
    if value not in catalog.model_names():
        raise UnknownNameError("model", value, catalog.model_names())
    return value


def _model(value: object) -> object:
    if not isinstance(value, str | Mapping | CustomModel):
        names = ", ".join(catalog.model_names())
        raise ValueError(f"{show(value)} is no model. Name one of {names}, or give groups:.")
    return value


def _model_form(value: object) -> str:
    return "custom" if isinstance(value, Mapping | CustomModel) else "named"


class Scenario(Section):
    """A node, a model, a cache policy and a workload. Made by `from_data` or `load_scenario`."""

    name: DirectoryName = Field(description="name of the scenario; results go to results/<name>/")
    seed: Annotated[int, Field(ge=0, lt=2**63)] = Field(
        default=0, description="all random draws follow from it"
    )
    model: Annotated[
        Annotated[str, AfterValidator(_catalog_model), Tag("named")]
        | Annotated[CustomModel, Tag("custom")],
        Discriminator(_model_form),
        BeforeValidator(_model),
    ] = Field(description="a model of the catalog, or groups: and more of a custom one")
    node: Node = Field(default=Node(), description="the machine")
    engine: Engine = Field(default=Engine(), description="how the engine is started")
    cache: Cache = Field(default=Cache(), description="the cache policy")
    offload: (
        Annotated[
            Annotated[CpuOffload, Tag("cpu")] | Annotated[MooncakeOffload, Tag("mooncake")],
            kind_of(None),
        ]
        | None
    ) = Field(default=None, description="tiers beyond the GPU's memory, kind: cpu or mooncake")
    step_time: Annotated[
        Annotated[RooflineStepTime, Tag("roofline")] | Annotated[ConstantStepTime, Tag("constant")],
        kind_of("roofline"),
    ] = Field(default=RooflineStepTime(), description="how long a step takes")
    workload: Annotated[
        Annotated[TraceWorkload, Tag("trace")]
        | Annotated[ScriptWorkload, Tag("script")]
        | Annotated[SyntheticWorkload, Tag("synthetic")],
        kind_of(None),
    ] = Field(description="where requests come from, kind: trace, script or synthetic")
    variants: dict[DirectoryName, dict[str, Any]] = Field(
        default={}, description="named overrides run side by side instead of the base"
    )
    sweep: Sweep | None = Field(
        default=None, description="what `kvsim sweep` varies: grid, zip, list and seeds"
    )
    objective: Objective | None = Field(default=None, description="what counts as goodput")
    output: Output = Field(default=Output(), description="what is written down")
    _directory: Path = PrivateAttr(default_factory=Path)

    def model_post_init(self, context: Any, /) -> None:
        """Keep the directory that paths are relative to."""
        self._directory = (context or {}).get("directory", Path())

    @classmethod
    def from_data(
        cls,
        data: object,
        where: str = "scenario",
        directory: Path | None = None,
        *,
        check_files: bool = False,
    ) -> Scenario:
        """Check data as a scenario file holds it, with all its variants.

        Args:
            data: keys and values; quantities may carry units.
            where: what the problems are reported under.
            directory: what relative paths in it are relative to, by default the current one.
            check_files: whether files it names have to be there.

        Raises:
            Problems: everything that is wrong with the base and its variants.
        """
        if not isinstance(data, Mapping):
            raise Problems(where, [f"{show(data)} is not a scenario. {_REMEDY}"])
        context = {"directory": directory or Path(), "check_files": check_files}
        keys, odd = without_odd_keys(data)
        scenario, found = _examine(keys, context)
        problems = [*odd, *found]
        variants = keys.pop("variants", None)
        if scenario is not None and scenario.sweep is not None and not found:
            problems += broken_sweep(scenario.sweep, scenario.variants)
        for name, overrides in variants.items() if isinstance(variants, dict) else ():
            if isinstance(overrides, dict):
                problems += [
                    Problem(f"variants.{name}{problem.place and '.'}{problem.place}", problem.text)
                    for problem in _variant_problems(keys, overrides, context)
                    if problem not in found
                ]
        if problems or scenario is None:
            raise Problems(where, [str(problem) for problem in problems])
        return scenario

    def __repr__(self) -> str:
        """One line: the model, the node, the cache policy and the workload."""
        model = self.model if isinstance(self.model, str) else "custom model"
        machine = f" on {self.node.gpus} x {self.node.gpu}" if self.node.gpu else ""
        interval = "dense" if self.retention_interval is None else self.retention_interval
        policy = f"{self.free_queue}, retention interval {interval}"
        variants = f", variants {', '.join(self.variants)}" if self.variants else ""
        return (
            f"Scenario({self.name!r}: {model}{machine}, {policy}, "
            f"{self.workload.kind} workload{variants})"
        )

    def replace(self, overrides: Mapping[str, Any], where: str = "scenario") -> Scenario:
        """A scenario with values replaced by dotted key, as in ``{"cache.retention_interval": 0}``.

        Raises:
            Problems: everything that is wrong with the result.
        """
        data, problems = lay_over(self.written(), overrides)
        if problems:
            raise Problems(where, [str(problem) for problem in problems])
        return self.from_data(data, where, self._directory)

    def written(self) -> dict[str, Any]:
        """The keys that were written, in plain numbers: what `from_data` makes it again from."""
        return self.model_dump(mode="json", exclude_unset=True)

    def resolved(self) -> dict[str, Any]:
        """All keys; without variants, what follows from others (the profile's, ...) spelled out."""
        data = self.model_dump(mode="json")
        if not self.variants:
            data["node"]["tensor_parallel"] = self.num_ranks
            data["engine"]["max_model_len"] = self.max_model_len
            data["cache"]["free_queue"] = self.free_queue
            data["cache"]["retention_interval"] = self.retention_interval
        return data

    @property
    def directory(self) -> Path:
        """What relative paths are relative to."""
        return self._directory

    @property
    def model_spec(self) -> catalog.Model:
        """The model, of the catalog or custom."""
        return catalog.model(self.model) if isinstance(self.model, str) else self.model.spec()

    @property
    def scheduler_block_tokens(self) -> int:
        """Unit of prefix hits in tokens: the least common multiple of the groups' block sizes."""
        return math.lcm(*(group.block_size for group in self.model_spec.groups))

    @property
    def max_model_len(self) -> int:
        """Longest sequence admitted, tokens: as set, or the model's longest."""
        return self.engine.max_model_len or self.model_spec.max_model_len or TOKENS_MAX

    @property
    def num_ranks(self) -> int:
        """Tensor-parallel GPUs of a replica: as set, or all of the node."""
        return self.node.tensor_parallel or self.node.gpus

    @property
    def tier_block_sizes(self) -> BlockSizes:
        """Bytes of blocks in the tier next to the device, and on the link to it."""
        shared = isinstance(self.offload, MooncakeOffload)
        return block_sizes(self.model_spec, self.num_ranks, ranks_share_stores=shared)

    @property
    def free_queue(self) -> str:
        """The free-queue order: as set, or the profile's."""
        written = self.cache.free_queue
        profile = PROFILES[self.engine.profile]
        return profile.free_queue.name if written == PROFILE_DEFAULT else written

    @property
    def retention_interval(self) -> int | None:
        """The retention interval in tokens, None for dense: as set, or the profile's."""
        written = self.cache.retention_interval
        if isinstance(written, str):
            return PROFILES[self.engine.profile].retention_interval
        return written


def _examine(
    data: Mapping[str, Any], context: Mapping[str, Any]
) -> tuple[Scenario | None, list[Problem]]:
    found = examine(Scenario, data, context, _STAND_INS)
    problems = list(found.problems)
    if found.value is not None:
        more = list(rules.broken(found.value))
        if context["check_files"]:
            more += rules.missing_files(found.value)
        problems += [problem for problem in more if found.stands(problem)]
    return found.value, problems


def _variant_problems(
    base: Mapping[str, Any], overrides: Mapping[str, Any], context: Mapping[str, Any]
) -> list[Problem]:
    if not overrides:
        return [Problem("", "overrides nothing. Give keys, as in {cache.retention_interval: 0}.")]
    fixed = [key for key in ("name", "variants", "sweep") if key in overrides]
    if fixed:
        return [Problem(key, "cannot be changed by a variant. Leave it out.") for key in fixed]
    data, problems = lay_over(base, overrides)
    return [*problems, *_examine(data, context)[1]]
