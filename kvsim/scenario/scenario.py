"""The scenario: its keys checked all at once, with all its variants."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from kvsim.errors import Problems, show
from kvsim.scenario import rules
from kvsim.scenario.keys import ScenarioKeys
from kvsim.scenario.sweep import broken_sweep
from kvsim.scenario.validation import Problem, examine, lay_over, without_odd_keys

_REMEDY = "Write a mapping with name:, model:, node: and workload:, as in scenarios/reference.yaml."
# To look for further problems with, where a key that has no default is missing or wrong.
_STAND_INS = {
    "name": "scenario",
    "model": {"groups": [{"kind": "full", "block_size": 1}]},
    "workload": {"kind": "trace", "path": "trace"},
}


class Scenario(ScenarioKeys):
    """A node, a model, a cache policy and a workload. Made by `from_data` or `load_scenario`."""

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
        gpu = self.gpu_spec
        machine = "" if gpu is None else f" on {self.node.gpus} x {gpu.name}"
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
            data["engine"]["max_num_batched_tokens"] = self.max_num_batched_tokens
            data["engine"]["max_num_seqs"] = self.max_num_seqs
            data["engine"]["async_scheduling"] = self.async_scheduling
            data["cache"]["free_queue"] = self.free_queue_setting
            if self.cache.retention is None:  # else that says what is kept
                data["cache"]["retention_interval"] = self.retention_interval
        return data


def _examine(
    data: Mapping[str, Any], context: Mapping[str, Any]
) -> tuple[Scenario | None, list[Problem]]:
    found = examine(Scenario, data, context, _STAND_INS)
    problems = list(found.problems)
    if found.value is not None:
        more = list(rules.broken(found.value))
        if context["check_files"]:
            more += [*rules.missing_files(found.value), *rules.missing_policies(found.value)]
        problems += [problem for problem in more if found.stands(problem)]
    return found.value, problems


def _variant_problems(
    base: Mapping[str, Any], overrides: Mapping[str, Any], context: Mapping[str, Any]
) -> list[Problem]:
    fixed = [key for key in ("name", "variants", "sweep") if key in overrides]
    if fixed:
        return [Problem(key, "cannot be changed by a variant. Leave it out.") for key in fixed]
    data, problems = lay_over(base, overrides)
    return [*problems, *_examine(data, context)[1]]
