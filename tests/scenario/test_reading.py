"""Scenario files: YAML at the door, overrides, variants, and what is written again."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from kvsim.errors import KvsimError, Problems
from kvsim.scenario import Scenario, ScriptWorkload, TraceWorkload
from kvsim.scenario.reading import FILE_BYTES_MAX, expand_variants, load_scenario, resolved_yaml

SCENARIOS = Path(__file__).parents[2] / "scenarios"
SMALL = """\
name: small
model:
  groups:
    - {kind: full, block_size: 16}
    - {kind: sliding_window, block_size: 8, sliding_window: 128}
node: {num_blocks: 100}
step_time: {kind: constant, step_s: 1e-3}
workload:
  kind: script
  requests:
    - {prompt: [[A, 1_000]], output: 2, output_name: A1}
    - {prompt: [[A, 1000], [A1, 2], [no, 50]], at_s: 10 ms}
"""
TRACE = """\
model: deepseek-v4-pro
node: {gpu: b300, gpus: 8}
workload: {kind: trace, path: traces/t.jsonl}
"""


def write(directory: Path, text: str | bytes, name: str = "s.yaml") -> Path:
    path = directory / name
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return path


def error(path: Path, *overrides: str) -> str:
    """The message with the directory taken off."""
    with pytest.raises(KvsimError) as caught:
        load_scenario(path, overrides)
    return str(caught.value).replace(f"{path.parent}{os.sep}", "")


def test_a_file_is_read(tmp_path: Path) -> None:
    scenario = load_scenario(write(tmp_path, SMALL))
    assert scenario.name == "small"
    assert isinstance(scenario.workload, ScriptWorkload)
    first, second = scenario.workload.requests
    assert (first.prompt, first.output, first.output_name) == ((("A", 1000),), 2, "A1")
    # `no` is a name here, not a truth value, and 1e-3 is a number.
    assert second.prompt[2] == ("no", 50)
    assert second.at_s == 0.01
    assert scenario.resolved()["step_time"]["step_s"] == 0.001


def test_the_name_is_the_files_where_none_is_given(tmp_path: Path) -> None:
    text = SMALL.replace("name: small\n", "")
    assert load_scenario(write(tmp_path, text, "b300-night.yaml")).name == "b300-night"


def test_windows_files_are_read(tmp_path: Path) -> None:
    text = b"\xef\xbb\xbf" + SMALL.replace("\n", "\r\n").encode()
    assert load_scenario(write(tmp_path, text)).name == "small"


def test_anchors_and_merges_are_read(tmp_path: Path) -> None:
    text = (
        SMALL + "variants:\n  a: &a {seed: 1, cache.free_queue: append}\n  b: {<<: *a, seed: 2}\n"
    )
    scenario = load_scenario(write(tmp_path, text))
    assert scenario.variants["b"] == {"seed": 2, "cache.free_queue": "append"}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "s.yaml: 1 problem\n  is empty, not a scenario. Write a mapping of keys, as in "),
        ("# nothing\n", "s.yaml: 1 problem\n  is empty, not a scenario."),
        ("null\n", "s.yaml: 1 problem\n  is empty, not a scenario."),
        ("- a\n", "s.yaml: 1 problem\n  holds a list, not a scenario."),
        ("5\n", "s.yaml: 1 problem\n  holds 5, not a scenario."),
        ("a: [1, 2\nb: 3\n", "s.yaml: line 2, column 2: expected ',' or ']', but got ':'."),
        (
            "a: 1\n\tb: 2\n",
            "s.yaml: line 2, column 1: found character '\\t' that cannot start any ",
        ),
        ("a: 1\n---\nb: 2\n", "s.yaml: line 2, column 1: but found another document."),
        (
            "node:\n  gpus: 8\n  gpus: 4\n",
            "s.yaml: line 3, column 3: key 'gpus' is given twice, first in line 2.",
        ),
        ("? [a, b]\n: 1\n", "s.yaml: line 1, column 3: a list or mapping stands as a key."),
        ("a: !!python/name:os.system x\n", "s.yaml: line 1, column 4: could not determine a "),
        ("a: *b\n", "s.yaml: line 1, column 4: found undefined alias 'b'."),
        ("a: &a [*a]\n", "s.yaml: line 1, column 4: an alias refers to what it stands in."),
        ("a: " + "[" * 60 + "]" * 60, "s.yaml: line 1, column 43: nested deeper than 40 levels."),
        ("[" * 5000, "s.yaml: is nested too deep. Use at most 40 levels."),
        (
            "a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n"
            + "".join(f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]\n" for n in range(1, 9)),
            "s.yaml: line 6, column 5: more than 200000 values, with aliases written out.",
        ),
        ("a: !!int x\n", "s.yaml: is not YAML: invalid literal for int() with base 10: 'x'."),
        ("a: " + "9" * 5000, "s.yaml: is not YAML: Exceeds the limit"),
        (b"a: \xff\xfe\n", "s.yaml: line 1 is not UTF-8 text. Save the file as UTF-8."),
        (b"a: 1\n\x1f\x8b\x08", "s.yaml: line 2 is not UTF-8 text. Save the file as UTF-8."),
        (b"a: 1\nb: \x00", "s.yaml: line 2: the character U+0000 is not allowed in YAML. Is this "),
        (b"a" * (FILE_BYTES_MAX + 1), "s.yaml: is larger than a scenario file may be (1048576 "),
    ],
)
def test_files_that_are_no_scenario(tmp_path: Path, text: str | bytes, message: str) -> None:
    assert error(write(tmp_path, text)).startswith(message)


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    write(tmp_path, SMALL, "night.yaml")
    assert error(tmp_path / "nigth.yaml") == (
        "nigth.yaml: there is no such scenario file. Did you mean 'night.yaml'?"
    )
    assert error(tmp_path / "zzz" / "x.yaml") == (
        "x.yaml: there is no such scenario file. Give the path of one."
    )
    (tmp_path / "directory").mkdir()
    assert error(tmp_path / "directory") == (
        "directory: is not a file. Give the path of a scenario file."
    )
    os.mkfifo(tmp_path / "pipe")
    assert error(tmp_path / "pipe") == "pipe: is not a file. Give the path of a scenario file."


@pytest.mark.skipif(os.geteuid() == 0, reason="root reads everything")
def test_a_file_without_permission(tmp_path: Path) -> None:
    path = write(tmp_path, SMALL)
    path.chmod(0)
    assert error(path) == "s.yaml: cannot be read: Permission denied."


def test_all_problems_come_under_the_files_name(tmp_path: Path) -> None:
    text = TRACE.replace("v4-pro", "v4-por") + "cache: {retention_interval: 100}\n"
    (tmp_path / "traces").mkdir()
    (tmp_path / "traces" / "t.jsonl").touch()
    assert error(write(tmp_path, text, "agentic.yaml")) == (
        "agentic.yaml: 2 problems\n"
        "  model: unknown model 'deepseek-v4-por'. Did you mean 'deepseek-v4-pro'?\n"
        "  cache.retention_interval: 100 is not a multiple of the scheduler block (256). "
        "Use 0, 256, 512, ... or null."
    )


def test_a_trace_that_is_not_there(tmp_path: Path) -> None:
    path = write(tmp_path, TRACE + "variants: {a: {workload.path: other}, b: {seed: -1}}\n")
    assert error(path) == (
        "s.yaml: 3 problems\n"
        "  workload.path: 'traces/t.jsonl': traces/t.jsonl does not exist. Give a path relative to "
        "the scenario file.\n"
        "  variants.a.workload.path: 'other': other does not exist. Give a path relative to the "
        "scenario file.\n"
        "  variants.b.seed: -1 is below 0. Use 0 or more."
    )
    (tmp_path / "traces" / "t.jsonl").mkdir(parents=True)
    assert "'traces/t.jsonl': traces/t.jsonl is not a file." in error(path)
    good = load_scenario(write(tmp_path, TRACE), check_files=False)
    assert isinstance(good.workload, TraceWorkload)
    assert good.workload.path == "traces/t.jsonl"
    assert good.workload.file == tmp_path / "traces" / "t.jsonl"


def test_set_changes_the_base_before_variants(tmp_path: Path) -> None:
    text = SMALL + "variants: {a: {cache.retention_interval: 32}, b: {seed: 5}}\n"
    path = write(tmp_path, text)
    overrides = ["cache.retention_interval=16", " seed = 7", "model.groups.1.block_size=16"]
    variants = expand_variants(load_scenario(path, overrides))
    assert {name: variant.retention_interval for name, variant in variants.items()} == {
        "a": 32,
        "b": 16,
    }
    assert {name: variant.seed for name, variant in variants.items()} == {"a": 7, "b": 5}
    assert all(not variant.variants for variant in variants.values())
    assert variants["a"].model_spec.groups[1].block_size == 16


def test_set_takes_yaml(tmp_path: Path) -> None:
    path = write(tmp_path, SMALL)
    changed = load_scenario(
        path,
        [
            "cache.retention_interval=null",
            "objective={ttft_s: 2 s}",
            "objective.tpot_s=1e-2",
            "output.timeline_interval_s=100 ms",
        ],
    )
    assert changed.retention_interval is None
    assert changed.objective is not None
    assert (changed.objective.ttft_s, changed.objective.tpot_s) == (2.0, 0.01)
    assert changed.output.timeline_interval_s == 0.1


def test_problems_of_set(tmp_path: Path) -> None:
    path = write(tmp_path, SMALL)
    overrides = ["seed", "=5", "seed=", "variants.a.seed=1", "cache.x=[", "name.x=1"]
    assert error(path, *overrides) == (
        "s.yaml: 6 problems\n"
        "  --set seed: is no key=value. Write it as in cache.retention_interval=0.\n"
        "  --set : is no key=value. Write it as in cache.retention_interval=0.\n"
        "  --set seed: has no value. Write null for none.\n"
        "  --set variants.a.seed: changes a variant. --set changes the base, before variants.\n"
        "  --set cache.x: line 1, column 2: expected the node content, but found '<stream end>'.\n"
        "  --set name.x: name is 'small', which has no key 'x'. Replace name whole."
    )
    assert error(path, "cache.retentoin=0", "cache.retention_interval=9") == (
        "s.yaml: 2 problems\n"
        "  cache.retentoin: unknown key. Did you mean 'retention'?\n"
        "  cache.retention_interval: 9 is not a multiple of the scheduler block (16). "
        "Use 0, 16, 32, ... or null."
    )


def test_paths_given_to_set(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "scenarios" / "traces").mkdir(parents=True)
    (tmp_path / "scenarios" / "traces" / "t.jsonl").touch()
    (tmp_path / "mine.jsonl").touch()
    path = write(tmp_path / "scenarios", TRACE)
    monkeypatch.chdir(tmp_path)
    # From where the command is given, else from the scenario's directory.
    for override, file in [
        ("workload.path=mine.jsonl", tmp_path / "mine.jsonl"),
        ("workload={kind: trace, path: mine.jsonl}", tmp_path / "mine.jsonl"),
        ("workload.path=traces/t.jsonl", tmp_path / "scenarios" / "traces" / "t.jsonl"),
    ]:
        workload = load_scenario(path, [override]).workload
        assert isinstance(workload, TraceWorkload)
        assert workload.file.resolve() == file.resolve()
        assert not Path(workload.path).is_absolute()


def test_without_variants_there_is_the_default(tmp_path: Path) -> None:
    variants = expand_variants(load_scenario(write(tmp_path, SMALL)))
    assert list(variants) == ["default"]
    assert variants["default"].name == "small"


def test_variants_with_their_own_profile_take_its_defaults(tmp_path: Path) -> None:
    profiles = ("vllm-0.22", "vllm-0.23", "vllm-0.32", "vllm-0.33")
    rows = "".join(f"  v{profile[-2:]}: {{engine.profile: {profile}}}\n" for profile in profiles)
    variants = expand_variants(load_scenario(write(tmp_path, f"{SMALL}variants:\n{rows}")))
    assert {name: (one.free_queue, one.retention_interval) for name, one in variants.items()} == {
        "v22": ("append", None),
        "v23": ("prepend-uncached-window", None),
        "v32": ("prepend-uncached", 0),
        "v33": ("prepend-uncached", 0),
    }


def test_what_is_written_runs_again(tmp_path: Path) -> None:
    text = SMALL.replace("[no, 50]", '["1e3", 50], ["null", 1], ["true", 2], [é, 3]')
    extra = "variants: {old: {engine.profile: vllm-0.22}}\nobjective: {ttft_s: 0.00001}\n"
    scenario = expand_variants(load_scenario(write(tmp_path, text + extra)))["old"]
    again = load_scenario(write(tmp_path, resolved_yaml(scenario), "again.yaml"))
    assert again.resolved() == scenario.resolved()
    assert (again.free_queue, again.retention_interval) == ("append", None)
    assert resolved_yaml(again) == resolved_yaml(scenario)


def test_a_retention_policy_is_written_without_an_interval(tmp_path: Path) -> None:
    made = load_scenario(write(tmp_path, SMALL + "cache: {retention: next-turn}\n"))
    (tmp_path / "again.yaml").write_text(resolved_yaml(made, tmp_path))
    again = load_scenario(tmp_path / "again.yaml")
    assert again.cache.retention == "next-turn"
    assert again.resolved() == made.resolved()


def test_what_is_written_finds_its_trace(tmp_path: Path) -> None:
    (tmp_path / "traces").mkdir()
    (tmp_path / "traces" / "t.jsonl").touch()
    (tmp_path / "results" / "deep").mkdir(parents=True)
    path = write(tmp_path, TRACE + "variants: {a: {workload.path: traces/t.jsonl}, b: {seed: 1}}\n")
    scenario = load_scenario(path)
    directory = tmp_path / "results" / "deep"
    moved = load_scenario(write(directory, resolved_yaml(scenario, directory)))
    assert isinstance(moved.workload, TraceWorkload)
    assert moved.workload.path == "../../traces/t.jsonl"
    assert moved.variants["a"] == {"workload.path": "../../traces/t.jsonl"}
    anywhere = load_scenario(write(directory, resolved_yaml(scenario)))
    assert isinstance(anywhere.workload, TraceWorkload)
    assert Path(anywhere.workload.path).is_absolute()


def test_the_quick_start() -> None:
    variants = expand_variants(load_scenario(SCENARIOS / "b300_conversation.yaml"))
    assert {name: (one.free_queue, one.retention_interval) for name, one in variants.items()} == {
        "append-dense": ("append", None),
        "prepend-dense": ("prepend-uncached", None),
        "prepend-interval-4096": ("prepend-uncached", 4096),
        "prepend-interval-32768": ("prepend-uncached", 32768),
        "prepend-boundary": ("prepend-uncached", 0),
        "boundary-synchronous": ("prepend-uncached", 0),
    }
    assert [name for name, one in variants.items() if not one.async_scheduling] == [
        "boundary-synchronous"
    ]
    for one in variants.values():
        assert isinstance(one.workload, TraceWorkload)
        assert one.workload.limit == 6000
        assert one.workload.file.is_file()
        assert one.num_ranks == 8


def test_the_issues_example_stands(tmp_path: Path) -> None:
    text = """\
name: b300-conversation
seed: 0
model: deepseek-v4-pro
node: {gpu: b300, gpus: 8, tensor_parallel: 8, gpu_memory_utilization: 0.92}
engine:
  {profile: vllm-0.33, max_model_len: 1048576, max_num_batched_tokens: 8192, max_num_seqs: 256}
cache: {free_queue: prepend-uncached, retention_interval: 0, enable_prefix_caching: true}
step_time: {kind: roofline}
workload: {kind: trace, format: mooncake, path: traces/mooncake_conversation.jsonl.gz, limit: 3000}
variants:
  append-dense: {cache.free_queue: append, cache.retention_interval: null}
  prepend-boundary: {cache.retention_interval: 0}
"""
    scenario = load_scenario(write(tmp_path, text), check_files=False)
    assert list(expand_variants(scenario)) == ["append-dense", "prepend-boundary"]


@pytest.mark.parametrize("data", [{}, {"x": 1}, {"variants": {"a": {"b": 1}}}])
def test_problems_are_problems(data: dict[str, Any]) -> None:
    with pytest.raises(Problems):
        Scenario.from_data(data)
