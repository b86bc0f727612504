"""The public surface: its names, their signatures, and that importing it is quick."""

from __future__ import annotations

import inspect
import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

import kvsim
from kvsim.errors import KvsimError
from kvsim.scenario import Scenario

NAMES = [
    "Comparison",
    "FindResult",
    "KvsimError",
    "RunResult",
    "Scenario",
    "SweepResult",
    "__version__",
    "compare",
    "find",
    "load_result",
    "load_scenario",
    "load_sweep",
    "node_capacity",
    "plots",
    "run",
    "sweep",
]
PARAMETERS = {
    "compare": ["runs"],
    "find": [
        "scenario",
        "objective",
        "largest",
        "smallest",
        "variant",
        "low",
        "high",
        "seeds",
        "tolerance",
        "jobs",
        "on_trial",
    ],
    "load_result": ["path"],
    "load_scenario": ["path", "overrides", "check_files"],
    "load_sweep": ["path"],
    "run": ["scenario", "variant"],
    "sweep": ["scenario", "grid", "seeds", "only", "out", "jobs", "backend", "on_progress"],
}
MEMBERS = {
    "RunResult": {"variant", "summary", "requests", "timeline", "scenario", "provenance"},
    "SweepResult": {"path", "scenario", "axes", "table", "result", "results"},
    "FindResult": {"quantity", "value", "bracket", "noise", "monotone", "trials", "notes"},
    "Comparison": {"reference", "cases", "scenario_changes", "table", "notes"},
    "Scenario": {"name", "seed", "model", "node", "engine", "cache", "workload", "replace"},
}
STARTER = Path(kvsim.__file__).with_name("scenario") / "starter.yaml"


def test_the_names() -> None:
    assert kvsim.__all__ == NAMES
    assert set(NAMES) <= set(dir(kvsim))
    with pytest.raises(AttributeError, match="module 'kvsim' has no attribute 'runs_of'"):
        kvsim.runs_of  # type: ignore[attr-defined]  # noqa: B018


@pytest.mark.parametrize("name", PARAMETERS)
def test_the_signatures(name: str) -> None:
    assert list(inspect.signature(getattr(kvsim, name)).parameters) == PARAMETERS[name]


@pytest.mark.parametrize("name", MEMBERS)
def test_the_members(name: str) -> None:
    kind = getattr(kvsim, name)
    assert MEMBERS[name] <= set(dir(kind)) | set(getattr(kind, "model_fields", {}))


def test_no_module_hides_a_function() -> None:
    modules = {path.stem for path in Path(kvsim.__file__).parent.iterdir()}
    assert modules & set(NAMES) <= {"plots"}
    code = (
        "import kvsim.study.sweeps, kvsim.results.variants, kvsim.cli, kvsim; "
        "assert callable(kvsim.run)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_importing_is_quick_and_draws_nothing() -> None:
    code = (
        "import sys, time; start = time.perf_counter(); import kvsim; kvsim.KvsimError; "
        "print(time.perf_counter() - start, *sys.modules)"
    )
    took = []
    for _ in range(3):  # the quickest of three: others may be using the machine
        out = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)
        seconds, *modules = out.stdout.decode().split()
        took.append(float(seconds))
        assert not {"matplotlib", "pandas", "numba", "simpy", "joblib"} & set(modules)
    assert min(took) < 0.5


def test_running_does_not_draw() -> None:
    code = (
        f"import sys, kvsim; kvsim.run({str(STARTER)!r}, 'dense'); "
        "assert 'matplotlib' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_a_scenario_is_loaded_changed_and_run() -> None:
    scenario = kvsim.load_scenario(STARTER)
    assert isinstance(scenario, Scenario)
    alone = scenario.replace({"variants": {}, "cache.retention_interval": 0})
    assert alone.variants == {}
    result = kvsim.run(alone)
    assert isinstance(result, kvsim.RunResult)
    assert result.variant == "default"
    assert result.summary["num_requests"] == len(result.requests) == 6
    assert {"time_s", "running"} <= set(result.timeline.columns)
    assert result.scenario.retention_interval == 0
    assert repr(result).startswith("RunResult('default': 6 requests, token hit rate ")
    assert "<th>default</th>" in result._repr_html_()
    assert kvsim.run(scenario, "boundary").summary["hit_tokens"] == result.summary["hit_tokens"]


def test_a_variant_has_to_be_named() -> None:
    def message(*arguments: Any) -> str:
        with pytest.raises(KvsimError) as caught:
            kvsim.run(*arguments)
        return str(caught.value)

    assert message(STARTER) == (
        "scenario starter: has variants (dense, interval-4096, boundary). Name one, as in "
        "variant='dense'; sweep runs them all."
    )
    assert message(STARTER, "boundry") == (
        "scenario starter: unknown variant 'boundry'. Did you mean 'boundary'?"
    )


def test_a_scenario_says_what_it_is() -> None:
    assert repr(kvsim.load_scenario(STARTER)) == (
        "Scenario('starter': deepseek-v4-pro on 8 x b300, prepend-uncached, retention interval 0, "
        "script workload, variants dense, interval-4096, boundary)"
    )


def test_the_schema_takes_what_is_shipped_and_knows_the_keys() -> None:
    import yaml

    from kvsim.scenario.schema import scenario_schema

    schema = scenario_schema()
    assert json.loads(json.dumps(schema)) == schema
    assert schema["required"] == ["model", "workload"]
    assert schema["properties"].keys() == Scenario.model_fields.keys()
    assert all("description" in field for field in schema["properties"].values())
    sizes = schema["$defs"]["Node"]["properties"]["activation_reserve"]["anyOf"]
    assert {part["type"] for part in sizes[0]["anyOf"]} == {"integer", "string"}
    assert sizes[1] == {"type": "null"}
    assert '"b300"' in json.dumps(schema["$defs"]["Node"]["properties"]["gpu"])
    jsonschema = pytest.importorskip("jsonschema")
    checker = jsonschema.Draft202012Validator(schema)
    shipped = Path(__file__).parents[1] / "scenarios"
    for path in [STARTER, *sorted(shipped.glob("*.yaml"))]:
        errors = [error.message for error in checker.iter_errors(yaml.safe_load(path.read_text()))]
        assert errors == [], path.name
    wrong = yaml.safe_load(STARTER.read_text())
    wrong["node"]["gpu"], wrong["nodes"] = "b3000", {}
    assert len(list(checker.iter_errors(wrong))) == 2


def test_a_new_scenario_runs_as_it_is(tmp_path: Path) -> None:
    from typer.testing import CliRunner

    from kvsim.cli import app

    path = tmp_path / "mine.yaml"
    written = CliRunner().invoke(app, ["new", str(path)])
    assert written.exit_code == 0
    assert written.output == f"Written: {path}\nRun it:  kvsim run {path}\n"
    result = kvsim.sweep(path, out=tmp_path / "out", jobs=1)
    assert (result.table["status"] == "done").all()
    assert (result.table["num_refused"] == 0).all()
    rates = result.table.set_index(["variant", "node.num_blocks"])["token_hit_rate"]
    # What it is there to show: dense retention evicts what it will need, in the small pool.
    assert rates["dense", 7000] < rates["boundary", 7000]
    assert rates["dense", 18000] >= rates["boundary", 18000]
    again = CliRunner().invoke(app, ["new", str(path)])
    assert str(again.exception) == f"{path}: is there already. Give another name."
    other = CliRunner().invoke(app, ["new", "mine.txt"])
    assert str(other.exception) == "mine.txt: is no YAML file. End its name in .yaml."
    nowhere = CliRunner().invoke(app, ["new", str(tmp_path / "no" / "x.yaml")])
    assert str(nowhere.exception).endswith("x.yaml: cannot be written: No such file or directory.")


def completions(words: str, shell_word: int) -> list[str]:
    import os

    environment = {
        **os.environ,
        "_KVSIM_COMPLETE": "complete_bash",
        "COMP_WORDS": words,
        "COMP_CWORD": str(shell_word),
    }
    code = "import sys; sys.argv = ['kvsim']; from kvsim.cli import main; main()"
    out = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True)
    return out.stdout.decode().split()


def test_the_shell_completes_verbs_keys_and_variants() -> None:
    assert "sweep" in completions("kvsim s", 1)
    assert "cache.retention_interval=" in completions("kvsim run a.yaml --set cache.r", 4)
    assert completions(f"kvsim run {STARTER} --only b", 4) == ["boundary"]


def test_time_is_not_spent_on_finding_out_that_all_is_done(tmp_path: Path) -> None:
    kvsim.sweep(STARTER, out=tmp_path, jobs=1)
    start_s = time.perf_counter()
    kvsim.sweep(STARTER, out=tmp_path)
    assert time.perf_counter() - start_s < 2
