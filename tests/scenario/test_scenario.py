"""What a scenario refuses, in which words, and what follows from one that it takes."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from kvsim import catalog
from kvsim.cache.spec import GroupSpec, scheduler_block_size
from kvsim.errors import KvsimError, Problems
from kvsim.policies.free_queue import FREE_QUEUE_POLICIES
from kvsim.policies.profiles import PROFILES
from kvsim.scenario import Node, OwnLink, Scenario, ScriptWorkload, TraceWorkload
from kvsim.scenario.keys import reserve_of


def small(**changes: Any) -> dict[str, Any]:
    """A scenario of a custom model that needs neither a GPU nor the catalog's numbers."""
    data: dict[str, Any] = {
        "name": "small",
        "model": {
            "groups": [
                {"kind": "full", "block_size": 16},
                {"kind": "sliding_window", "block_size": 8, "sliding_window": 128},
            ]
        },
        "node": {"num_blocks": 100},
        "step_time": {"kind": "constant", "step_s": 0.01},
        "workload": {"kind": "script", "requests": [{"prompt": [["A", 100]], "output": 1}]},
    }
    return {**data, **changes}


def catalog_scenario(**changes: Any) -> dict[str, Any]:
    data: dict[str, Any] = {
        "name": "pro",
        "model": "deepseek-v4-pro",
        "node": {"gpu": "b300", "gpus": 8},
        "workload": {"kind": "trace", "path": "t.jsonl"},
    }
    return {**data, **changes}


FULL_ONLY = {"groups": [{"kind": "full", "block_size": 16}]}


def problems(data: Any) -> list[str]:
    with pytest.raises(Problems) as caught:
        Scenario.from_data(data)
    return caught.value.problems


def test_the_small_scenario_stands() -> None:
    scenario = Scenario.from_data(small())
    assert scenario.scheduler_block_tokens == 16
    assert scenario.node.num_blocks == 100
    assert scenario.max_model_len == 1_048_576
    assert isinstance(scenario.workload, ScriptWorkload)
    assert scenario.workload.requests[0].prompt == (("A", 100),)
    assert scenario.seed == 0
    assert scenario.objective is None
    assert scenario.output.timeline_interval_s == 1.0


def test_quantities_are_read_at_the_door() -> None:
    data = small(
        node={"num_blocks": 100, "activation_reserve": "2 GiB"},
        step_time={"kind": "constant", "step_s": "10 ms"},
        objective={"ttft_s": "2 s"},
        output={"timeline_interval_s": "500 ms"},
    )
    scenario = Scenario.from_data(data)
    assert scenario.node.activation_reserve == 2 * 2**30
    assert scenario.resolved()["step_time"]["step_s"] == 0.01
    assert scenario.objective is not None
    assert (scenario.objective.ttft_s, scenario.objective.tpot_s) == (2.0, None)
    assert scenario.output.timeline_interval_s == 0.5


def test_a_scenario_is_frozen_and_travels() -> None:
    scenario = Scenario.from_data(small(), directory=Path("somewhere"))
    with pytest.raises(ValidationError):
        scenario.seed = 1  # type: ignore[misc]
    again = pickle.loads(pickle.dumps(scenario))
    assert again == scenario
    assert again.directory == Path("somewhere")


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (small(seed=True), "seed: true is not a whole number. Write a number."),
        (small(seed="8"), "seed: '8' is not a whole number. Write 8 without quotes."),
        (small(seed=8.0), "seed: 8.0 is not a whole number. Write 8."),
        (small(seed="few"), "seed: 'few' is not a whole number. Write a number without a unit."),
        (small(seed=-1), "seed: -1 is below 0. Use 0 or more."),
        (small(name=5), "name: 5 is not text. Put it in quotes."),
        (
            small(name="../x"),
            "name: '../x' is no name for a directory. Use 1 to 100 letters, digits, '-', '_', '.', "
            "'=', not starting with '.' or '-'.",
        ),
        (small(sed=1), "sed: unknown key. Did you mean 'seed'?"),
        (
            small(zzz=1),
            "zzz: unknown key. Known: name, seed, model, node, fleet, engine, cache, offload, "
            "step_time, workload, variants, sweep, objective, output.",
        ),
        (
            small(max_num_seqs=1),
            "max_num_seqs: unknown key here. Did you mean 'engine.max_num_seqs'?",
        ),
        (
            small(**{"cache.retention_interval": 0}),
            "cache.retention_interval: dotted keys are for variants and --set. "
            "Write cache: {retention_interval: ...}.",
        ),
        (small(model=7), "model: 7 is no model. Name one of deepseek-"),
        (
            small(model="deepseek-v4-por", node={"gpu": "b300", "num_blocks": 9}),
            "model: unknown model 'deepseek-v4-por'. Did you mean 'deepseek-v4-pro'?",
        ),
        (
            small(node={"num_blocks": 100, "gpu": "B3000"}),
            "node.gpu: unknown GPU 'B3000'. Did you mean 'b300'?",
        ),
        (small(node={"num_blocks": 1}), "node.num_blocks: 1 is below 2. Use 2 or more."),
        (small(node=None), "node: null is not a mapping. Write key: value pairs below it."),
        (small(node=[]), "node: an empty list is not a mapping. Write key: value pairs below it."),
        (
            small(node={"num_blocks": 100, "gpu_memory_utilization": 92}),
            "node.gpu_memory_utilization: 92 is above 1. Use 1 or less.",
        ),
        (
            small(node={"num_blocks": 100, "gpu_memory_utilization": 0}),
            "node.gpu_memory_utilization: 0 is not above 0. Use a value above 0.",
        ),
        (
            small(node={"num_blocks": 100, "gpu_memory_utilization": float("nan")}),
            "node.gpu_memory_utilization: nan is not a finite number. Write a finite one.",
        ),
        (
            small(node={"num_blocks": 100, "gpu_memory_utilization": "0.9"}),
            "node.gpu_memory_utilization: '0.9' is not a number. Write 0.9 without quotes.",
        ),
        (
            small(node={"num_blocks": 100, "activation_reserve": "3.4 gib"}),
            "node.activation_reserve: '3.4 gib' has an unknown unit. Did you mean 'GiB'?",
        ),
        (
            small(node={"num_blocks": 100, "activation_reserve": -1}),
            "node.activation_reserve: -1 is below 0. Use 0 or more.",
        ),
        (
            small(node={"num_blocks": 100, "gpus": 8, "tensor_parallel": 3}),
            "node.tensor_parallel: 3 leaves GPUs 3 to 7 of 8 (node.gpus) to nobody. Use 8, or "
            "node.gpus: 3.",
        ),
        (
            small(node={"num_blocks": 100, "gpus": 8, "tensor_parallel": 1}),
            "node.tensor_parallel: 1 leaves GPUs 1 to 7 of 8 (node.gpus) to nobody. Use 8, "
            "node.data_parallel: 8, or node.gpus: 1.",
        ),
        (
            small(node={"num_blocks": 100, "gpus": 4, "tensor_parallel": 8}),
            "node.tensor_parallel: 8 is above node.gpus (4). Use 4.",
        ),
        (
            small(model={**FULL_ONLY, "num_kv_heads": 3}, node={"num_blocks": 9, "gpus": 2}),
            "node.tensor_parallel: 2 neither divides the 3 KV heads of custom nor is a multiple",
        ),
        (
            small(engine={"profile": "vllm-0.34"}),
            "engine.profile: unknown profile 'vllm-0.34'. Did you mean 'vllm-0.33'?",
        ),
        (
            small(engine={"max_model_len": 2**24}),
            "engine.max_model_len: 16777216 is above 16777215. Use 16777215 or less.",
        ),
        (
            small(engine={"max_model_len": 2_097_152}),
            "engine.max_model_len: 2097152 is above the longest sequence of the model (1048576). "
            "Use 1048576 or less.",
        ),
        (
            small(engine={"max_num_batched_tokens": 0}),
            "engine.max_num_batched_tokens: 0 is below 1. Use 1 or more.",
        ),
        (
            small(cache={"free_queue": "prepend"}),
            "cache.free_queue: unknown free_queue 'prepend'. Did you mean 'append'?",
        ),
        (
            small(cache={"free_queue": 1}),
            "cache.free_queue: 1 is no free_queue. Choices: profile, append, "
            "prepend-uncached-window, prepend-uncached, lru,",
        ),
        (
            small(cache={"enable_prefix_caching": 1}),
            "cache.enable_prefix_caching: 1 is not true or false. Write true or false.",
        ),
        (
            small(cache={"retention_interval": 100}),
            "cache.retention_interval: 100 is not a multiple of the scheduler block (16). "
            "Use 0, 16, 32, ... or null.",
        ),
        (
            small(cache={"retention_interval": -16}),
            "cache.retention_interval: -16 is negative. Use 0, a number of tokens, or null "
            "(dense).",
        ),
        (
            small(cache={"retention_interval": "16"}),
            "cache.retention_interval: '16' is not an interval. Use 0, a number of tokens, null "
            "(dense) or 'profile' (what engine.profile does).",
        ),
        (
            small(cache={"retention_interval": False}),
            "cache.retention_interval: false is not an interval. Use 0, a number of tokens, null "
            "(dense) or 'profile' (what engine.profile does).",
        ),
        (
            small(cache={"retention_interval": 16}, model=FULL_ONLY),
            "cache.retention_interval: 16 needs a sliding-window group, and the model has none. "
            "Use 0 or null.",
        ),
        (
            small(cache={"retention_interval": 0}, engine={"profile": "vllm-0.22"}),
            "cache.retention_interval: 0 is set, and engine.profile vllm-0.22 has no retention "
            "interval: it is dense. Use null, or a later profile.",
        ),
        (small(objective={}), "objective: names neither ttft_s nor tpot_s. Give one, or leave it"),
        (
            small(output={"timeline_interval_s": 0}),
            "output.timeline_interval_s: 0 is not above 0. Use a value above 0.",
        ),
    ],
)
def test_one_problem(data: dict[str, Any], text: str) -> None:
    (found,) = problems(data)
    assert found.startswith(text)


@pytest.mark.parametrize(
    ("model", "text"),
    [
        ({}, "model: is not described. Give one of config: (a config.json), layers: and groups:."),
        ({"groups": []}, "model.groups: has 0 entries. Give at least 1."),
        (
            {"groups": FULL_ONLY["groups"] * 65},
            "model.groups: has 65 entries. Give at most 64.",
        ),
        (
            {"groups": {"kind": "full"}},
            "model.groups: a mapping is not a list. Write one as in [a, b].",
        ),
        (
            {"groups": [{"kind": "full", "block_size": 16, "checkpoint_alignment": 16}]},
            "model.groups.0.checkpoint_alignment: stands on a full group, which has no states. "
            "Leave it out.",
        ),
        (
            {"groups": [{"kind": "sliding", "block_size": 16}]},
            "model.groups.0.kind: unknown kind 'sliding'. Did you mean 'sliding_window'?",
        ),
        (
            {"groups": [{"kind": "full"}]},
            "model.groups.0.block_size: is missing. Give: tokens a block holds.",
        ),
        (
            {"groups": [{"kind": "full", "block_size": 0}]},
            "model.groups.0.block_size: 0 is below 1. Use 1 or more.",
        ),
        (
            {"groups": [{"kind": "sliding_window", "block_size": 16}]},
            "model.groups.0.sliding_window: is missing. A sliding_window group needs its tokens.",
        ),
        (
            {"groups": [{"kind": "full", "block_size": 16, "sliding_window": 128}]},
            "model.groups.0.sliding_window: 128 stands on a full group, which has no window. "
            "Leave it out, or use kind sliding_window.",
        ),
        (
            {"groups": [{"kind": "full", "block_size": 16, "blocksize": 128}]},
            "model.groups.0.blocksize: unknown key. Did you mean 'block_size'?",
        ),
        (
            {"groups": [{"kind": "full", "block_size": 16, "zzz": 1}]},
            "model.groups.0.zzz: unknown key. Known: kind, block_size, sliding_window, "
            "attention_chunk_size, eagle, "
            "checkpoint_alignment, bytes_per_block.",
        ),
        (
            {"groups": [{"kind": "full", "block_size": b} for b in (2**20, 2**20 - 1)]},
            "model.groups: the least common multiple of the block sizes, the unit of hits, is "
            "1099510579200 tokens. Use at most 16777215.",
        ),
        (
            {**FULL_ONLY, "num_experts": 8},
            "model: gives some of expert_bytes, num_experts and experts_per_token. Give all or",
        ),
        (
            {**FULL_ONLY, "num_experts": 8, "experts_per_token": 9, "expert_bytes": 5},
            "model.experts_per_token: 9 is above num_experts (8). Correct one.",
        ),
        (
            {
                **FULL_ONLY,
                "num_experts": 8,
                "experts_per_token": 2,
                "expert_bytes": 5,
                "weight_bytes": 4,
            },
            "model.expert_bytes: 5 is above weight_bytes (4). Correct one.",
        ),
    ],
)
def test_one_problem_of_a_custom_model(model: dict[str, Any], text: str) -> None:
    (found,) = problems(small(model=model))
    assert found.startswith(text)


@pytest.mark.parametrize(
    ("workload", "texts"),
    [
        ({}, ["workload.kind: is missing. Choices: trace, script, synthetic."]),
        ([], ["workload: an empty list is not a mapping. Write key: value pairs below it."]),
        ({"kind": "trce"}, ["workload.kind: unknown kind 'trce'. Did you mean 'trace'?"]),
        ({"kind": 5}, ["workload.kind: 5 is no kind. Choices: trace, script, synthetic."]),
        (
            {"kind": "trace"},
            ["workload.path: is missing. Give: trace file, relative to the file that names it."],
        ),
        (
            {"kind": "trace", "path": "t", "requests": []},
            [
                "workload.requests: unknown key. Did you mean 'reuse'?",
            ],
        ),
        (
            {"kind": "trace", "path": "t", "limit": 0, "time_scale": 0, "format": "csv"},
            [
                "workload.format: unknown format 'csv'. Known: auto, mooncake, mooncake-delta, "
                "aiperf, agentic-mooncake, applied-compute, dynamo-requests, weka, qwen-bailian, "
                "azure, burstgpt, table, sessions, opentelemetry, sharegpt, wildchat, lmsys, "
                "trajectories, openai, token-ids.",
                "workload.limit: 0 is below 1. Use 1 or more.",
                "workload.time_scale: 0 is not above 0. Use a value above 0.",
            ],
        ),
        (
            {"kind": "script", "requests": []},
            ["workload.requests: has 0 entries. Give at least 1."],
        ),
        (
            {"kind": "script", "requests": [{"prompt": [["A", 5]]}], "concurrency": 2},
            ["workload.concurrency: 2 is no concurrency. Choices: 1, null."],
        ),
        (
            {
                "kind": "script",
                "requests": [
                    {"prompt": []},
                    {"prompt": [["A"], "B", ["C", 0], [5, 5], ["", 1]], "ouput": 1, "output": 0},
                    {"prompt": [["A", 2**24 - 1]]},
                    {"at_s": "soon", "prompt": [["A", 1.5]]},
                    5,
                ],
            },
            [
                "workload.requests.0.prompt: has 0 entries. Give at least 1.",
                "workload.requests.1.prompt.0: a list is no span. Write [name, tokens], as in "
                "[A, 1000].",
                "workload.requests.1.prompt.1: 'B' is no span. Write [name, tokens], as in "
                "[A, 1000].",
                "workload.requests.1.prompt.2.1: 0 is below 1. Use 1 or more.",
                "workload.requests.1.prompt.3.0: 5 is not text. Put it in quotes.",
                "workload.requests.1.prompt.4.0: '' is empty. Write at least one character.",
                "workload.requests.1.output: 0 is below 1. Use 1 or more.",
                "workload.requests.1.ouput: unknown key. Did you mean 'output'?",
                "workload.requests.2: prompt and output are 16777216 tokens. Use at most 16777215.",
                "workload.requests.3.prompt.0.1: 1.5 is not a whole number. Write a number.",
                "workload.requests.3.at_s: 'soon' is not a time. Write a finite one, as in "
                "'15 ms'.",
                "workload.requests.4: 5 is not a mapping. Write key: value pairs below it.",
            ],
        ),
    ],
)
def test_problems_of_a_workload(workload: Any, texts: list[str]) -> None:
    assert problems(small(workload=workload)) == texts


@pytest.mark.parametrize(
    ("step_time", "text"),
    [
        ({"kind": "constant"}, "step_time.step_s: is missing. Give: time of a step."),
        ({"kind": "constat"}, "step_time.kind: unknown kind 'constat'. Did you mean 'constant'?"),
        ("roofline", "step_time: 'roofline' is not a mapping. Write key: value pairs below it."),
        (
            {"kind": "constant", "step_s": "-1 s"},
            "step_time.step_s: '-1 s' is below 0. Use 0 or more.",
        ),
        (
            {"kind": "constant", "step_s": 1, "compute_efficiency": 0.5},
            "step_time.compute_efficiency: unknown key for kind constant. "
            "Known: kind, step_s, token_s.",
        ),
    ],
)
def test_problems_of_step_times(step_time: Any, text: str) -> None:
    assert problems(small(step_time=step_time)) == [text]


def test_what_the_number_of_blocks_and_the_roofline_need() -> None:
    assert problems(small(node={}, step_time={})) == [
        "node.gpu: is missing, for the number of blocks and step_time.kind roofline. Name one of "
        f"{', '.join(catalog.gpu_names())}, or set node.num_blocks and use step_time.kind "
        "constant.",
        "model.weight_bytes: is missing, for the number of blocks and step_time.kind roofline. "
        "Give it, or set node.num_blocks and use step_time.kind constant.",
        "model.active_parameters: is missing, for step_time.kind roofline. Give it, or use "
        "step_time.kind constant.",
        "model.groups.0.bytes_per_block: is missing, for the number of blocks and step_time.kind "
        "roofline. Give it, or set node.num_blocks and use step_time.kind constant.",
        "model.groups.1.bytes_per_block: is missing, for the number of blocks and step_time.kind "
        "roofline. Give it, or set node.num_blocks and use step_time.kind constant.",
    ]


def test_a_gpu_without_the_models_arithmetic() -> None:
    groups = [{"kind": "full", "block_size": 16, "bytes_per_block": 4096}]
    model = {"groups": groups, "weight_bytes": "8 GB", "active_parameters": 8e9, "precision": "fp4"}
    assert problems(small(model=model, node={"gpu": "h200"}, step_time={})) == [
        "node.gpu: h200 has no peak for the model's fp4 arithmetic. Use another GPU."
    ]
    assert Scenario.from_data(small(model=model, node={"gpu": "b300"}, step_time={}))


def test_all_problems_come_at_once() -> None:
    data = catalog_scenario(
        model="deepseek-v4-por",
        cache={"retention_interval": 100},
        engine={"max_model_len": 2**21, "max_num_seq": 4},
        node={"gpu": "b300", "gpus": 8, "tensor_parallel": 3},
        seed="x",
        variants={"a": {}, "b": {"cache.retention_intervall": 256}},
    )
    del data["workload"]
    # The interval is held against the model that was probably meant.
    assert problems(data) == [
        "seed: 'x' is not a whole number. Write a number without a unit.",
        "model: unknown model 'deepseek-v4-por'. Did you mean 'deepseek-v4-pro'?",
        "engine.max_num_seq: unknown key. Did you mean 'max_num_seqs'?",
        "workload: is missing. Give: where requests come from, kind: trace, script or synthetic.",
        "cache.retention_interval: 100 is not a multiple of the scheduler block (256). "
        "Use 0, 256, 512, ... or null.",
        "engine.max_model_len: 2097152 is above the longest sequence of the model (1048576). "
        "Use 1048576 or less.",
        "node.tensor_parallel: 3 leaves GPUs 3 to 7 of 8 (node.gpus) to nobody. Use 8, or "
        "node.gpus: 3.",
        "variants.b.cache.retention_intervall: unknown key. Did you mean 'retention_interval'?",
    ]


def test_nothing_follows_from_what_was_misread() -> None:
    # Neither the block sizes nor the number of blocks are known, so nothing is said about them.
    data = small(
        model={"groups": [{"kind": "full", "block_size": "x"}]},
        node={"num_blocks": "x"},
        cache={"retention_interval": 100},
    )
    assert [text.split(":")[0] for text in problems(data)] == [
        "model.groups.0.block_size",
        "node.num_blocks",
    ]


def test_keys_that_are_no_text() -> None:
    data = small(variants={4096: {"cache.retention_interval": 4096}})
    assert problems({**data, None: 1}) == [
        "key null is not text. Put it in quotes.",
        "variants: key 4096 is not text. Put it in quotes.",
    ]


@pytest.mark.parametrize("data", [None, [], "text", 5])
def test_no_scenario_at_all(data: object) -> None:
    (text,) = problems(data)
    assert "is not a scenario. Write a mapping with name:" in text


@pytest.mark.parametrize(
    ("variants", "texts"),
    [
        ([], ["variants: an empty list is not a mapping. Write key: value pairs below it."]),
        (
            {"a": None},
            ["variants.a: null is not a mapping. Write key: value pairs below it."],
        ),
        (
            {"a": {"name": "x"}, "b": {"variants": {}}},
            [
                "variants.a.name: cannot be changed by a variant. Leave it out.",
                "variants.b.variants: cannot be changed by a variant. Leave it out.",
            ],
        ),
        (
            {"a": {"cache.retention_interval": 100, "engine.max_num_seq": 1}},
            [
                "variants.a.engine.max_num_seq: unknown key. Did you mean 'max_num_seqs'?",
                "variants.a.cache.retention_interval: 100 is not a multiple of the scheduler block "
                "(16). Use 0, 16, 32, ... or null.",
            ],
        ),
        (
            {"a": {"model.groups.2.block_size": 8}},
            ["variants.a.model.groups.2.block_size: model.groups has no entry 2. It has 2, counted "
             "from 0."],
        ),
        (
            {"a": {"seed.x": 8, "node.num_blocks.y": 1}},
            ["variants.a.node.num_blocks.y: node.num_blocks is 100, which has no key 'y'. Replace "
             "node.num_blocks whole."],
        ),
        (
            {"a": {"engine.profile": "vllm-0.22"}},
            ["variants.a.cache.retention_interval: 0 is set, and engine.profile vllm-0.22 has no "
             "retention interval: it is dense. Use null, or a later profile."],
        ),
        (
            {"../a": {"seed": 1}},
            ["variants.../a: '../a' is no name for a directory. Use 1 to 100 letters, digits, '-', "
             "'_', '.', '=', not starting with '.' or '-'."],
        ),
    ],
)  # fmt: skip
def test_problems_of_variants(variants: Any, texts: list[str]) -> None:
    data = small(cache={"retention_interval": 0}, variants=variants)
    assert [text for text in problems(data) if "variants.a.seed" not in text] == texts


def test_defaults_follow_the_profile() -> None:
    for name, profile in PROFILES.items():
        scenario = Scenario.from_data(small(engine={"profile": name}))
        assert scenario.free_queue == profile.free_queue.name
        assert scenario.retention_interval == profile.retention_interval
        assert profile.free_queue.name in FREE_QUEUE_POLICIES
    assert PROFILES["vllm-0.33"].retention_interval == 0
    assert PROFILES["vllm-0.23"].retention_interval is None


def test_null_is_not_absent() -> None:
    dense = Scenario.from_data(small(cache={"retention_interval": None}))
    assert dense.retention_interval is None
    assert Scenario.from_data(small(cache={})).retention_interval == 0
    old = small(cache={"retention_interval": None}, engine={"profile": "vllm-0.22"})
    assert Scenario.from_data(old).retention_interval is None
    back = dense.replace({"cache.retention_interval": "profile"})
    assert back.retention_interval == 0


def test_order_and_interval_are_overridden_alone() -> None:
    data = small(cache={"free_queue": "append"}, engine={"profile": "vllm-0.33"})
    scenario = Scenario.from_data(data)
    assert (scenario.free_queue, scenario.retention_interval) == ("append", 0)


def test_zero_is_accepted_without_window_groups() -> None:
    assert Scenario.from_data(small(cache={"retention_interval": 0}, model=FULL_ONLY))


def test_replace() -> None:
    scenario = Scenario.from_data(small(), directory=Path("here"))
    changed = scenario.replace({"cache.retention_interval": 32, "model.groups.1.block_size": 32})
    assert changed.retention_interval == 32
    assert changed.scheduler_block_tokens == 32
    assert changed.directory == Path("here")
    assert scenario.retention_interval == 0
    with pytest.raises(Problems, match="cache.retention_interval: 100 is not a multiple"):
        scenario.replace({"cache.retention_interval": 100})
    with pytest.raises(Problems, match="cache.intervall: unknown key"):
        scenario.replace({"cache.intervall": 100})


def test_sections_are_laid_over_and_kinds_replace() -> None:
    scenario = Scenario.from_data(small(cache={"retention_interval": 32}))
    laid = scenario.replace({"cache": {"free_queue": "append"}})
    assert (laid.free_queue, laid.retention_interval) == ("append", 32)
    trace = scenario.replace({"workload": {"kind": "trace", "path": "t"}})
    assert isinstance(trace.workload, TraceWorkload)
    objective = scenario.replace({"objective.ttft_s": 2})
    assert objective.objective is not None
    assert objective.replace({"objective": None}).objective is None


def test_a_key_of_a_section_that_was_left_out() -> None:
    data = catalog_scenario()
    changed = Scenario.from_data(data).replace({"step_time.compute_efficiency": 0.5})
    assert changed.resolved()["step_time"]["compute_efficiency"] == 0.5


def test_resolved_spells_everything_out() -> None:
    resolved = Scenario.from_data(catalog_scenario()).resolved()
    assert resolved["node"]["tensor_parallel"] == 8
    assert resolved["engine"]["max_model_len"] == 1_048_576
    assert resolved["cache"] == {
        "retention": None,
        "free_queue": "prepend-uncached",
        "retention_interval": 0,
        "enable_prefix_caching": True,
    }
    with_variants = Scenario.from_data(catalog_scenario(variants={"a": {"seed": 1}})).resolved()
    assert with_variants["cache"]["free_queue"] == "profile"


def test_groups_are_the_cores() -> None:
    spec = Scenario.from_data(small()).model_spec
    groups = tuple(
        GroupSpec(group.kind, group.block_size, group.sliding_window, group.eagle)
        for group in spec.groups
    )
    assert scheduler_block_size(groups) == Scenario.from_data(small()).scheduler_block_tokens
    pro = Scenario.from_data(catalog_scenario())
    assert pro.scheduler_block_tokens == 256
    assert pro.model_spec == catalog.model("deepseek-v4-pro")


def test_a_custom_model_is_an_entry_of_the_catalog() -> None:
    entry = catalog.model("deepseek-v4-pro")
    attention = [
        {key: getattr(term, key) for key in
         ("num_layers", "flops_per_context_token", "max_context_tokens", "split_over_ranks")}
        for term in entry.attention or ()
    ]  # fmt: skip
    reads = [
        {key: getattr(read, key) for key in
         ("num_layers", "bytes_per_context_token", "max_context_tokens")}
        for read in entry.kv_reads or ()
    ]  # fmt: skip
    keys = ("kind", "block_size", "sliding_window", "bytes_per_block")
    model = {
        "groups": [{key: getattr(group, key) for key in keys} for group in entry.groups],
        "attention": attention,
        "kv_reads": reads,
        **{
            key: getattr(entry, key)
            for key in ("active_parameters", "max_model_len", "num_experts", "experts_per_token")
            + ("total_parameters", "kv_replicated", "precision")
        },
        "weight_bytes": int(entry.weight_bytes or 0),
        "expert_bytes": int(entry.expert_bytes),
    }
    spec = Scenario.from_data(catalog_scenario(model=model)).model_spec
    assert spec.bytes_per_block == entry.bytes_per_block
    assert spec.active_parameters == entry.active_parameters
    assert [term.num_layers for term in spec.attention or ()] == [
        term.num_layers for term in entry.attention or ()
    ]
    assert len(spec.kv_reads or ()) == len(reads)


def test_the_reserve_is_derived_unless_it_is_given() -> None:
    assert Node().activation_reserve is None
    node = {"gpu": "h100", "num_blocks": None}
    derived = reserve_of(Scenario.from_data(catalog_scenario(model="llama-3.1-8b", node=node)))
    assert "sampling of 1,024 sequences" in derived.reason
    given = catalog_scenario(model="llama-3.1-8b", node={**node, "activation_reserve": "2 GiB"})
    assert reserve_of(Scenario.from_data(given)).total_bytes == 2 * 2**30


JUNK = st.sampled_from(
    [None, True, -1, 0, 5, 2.5, float("nan"), float("inf"), 10**30, "", "x", "8", "5 GB"]
    + [[], [1], [["A", 5]], {}, {"kind": "constant"}, {"a": {"b": 1}}, {5: 5}, {"": 1}, {"a.b": 1}]
)


def places(data: Any, above: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    if above:
        yield above
    inner: Any = ()
    if isinstance(data, dict):
        inner = data.items()
    elif isinstance(data, list):
        inner = enumerate(data)
    for key, value in inner:
        yield from places(value, (*above, key))


@settings(max_examples=400, derandomize=True, deadline=None)
@given(st.data())
def test_no_data_ends_in_anything_but_problems(draw: st.DataObject) -> None:
    variants = {"a": {"model.groups.1.block_size": 8}, "b": {"cache.free_queue": "append"}}
    start = draw.draw(st.sampled_from([small(variants=variants), catalog_scenario()]))
    data = copy.deepcopy(start)
    for _ in range(draw.draw(st.integers(1, 3))):
        *path, last = draw.draw(st.sampled_from(sorted(places(data), key=repr)))
        node = data
        for key in path:
            node = node[key]
        change = draw.draw(st.sampled_from(["replace", "add", "delete"]))
        if change == "delete" and len(data) > 1:
            del node[last]
        elif change == "add" and isinstance(node, dict):
            key = draw.draw(st.sampled_from(["kinds", "gpus", "", "a.b", "0"]))
            node[key] = copy.deepcopy(draw.draw(JUNK))
        else:
            node[last] = copy.deepcopy(draw.draw(JUNK))
    try:
        scenario = Scenario.from_data(data)
    except KvsimError as error:
        assert str(error).startswith("scenario: ")
        return
    assert Scenario.from_data(scenario.written()) == scenario
    assert Scenario.from_data(scenario.resolved()).resolved() == scenario.resolved()


@pytest.mark.parametrize(
    ("offload", "texts"),
    [
        (5, ["offload: 5 is not a mapping. Write key: value pairs below it."]),
        ({"capacity": "1 TiB"}, ["offload.kind: is missing. Choices: cpu, mooncake."]),
        ({"kind": "disk"}, ["offload.kind: unknown kind 'disk'. Known: cpu, mooncake."]),
        (
            {"kind": "cpu", "link": "pcie-gen6"},
            ["offload.link: unknown link 'pcie-gen6'. Did you mean 'pcie-gen6-x16'?"],
        ),
        (
            {"kind": "cpu", "capacity": 0, "link": {"bandwidth": "0 GB/s"}},
            [
                "offload.capacity: 0 is not above 0. Use a value above 0.",
                "offload.link.bandwidth: '0 GB/s' is not above 0. Use a value above 0.",
            ],
        ),
        (
            {"kind": "cpu", "link": {}, "num_chunks": 0},
            [
                "offload.num_chunks: 0 is below 1. Use 1 or more.",
                "offload.link.bandwidth: is missing. Give: nominal bandwidth each way, bytes a "
                "second or with a unit.",
            ],
        ),
        (
            {"kind": "cpu", "capacity": "1 MB", "below": {"capacity": 1}},
            [
                "offload.capacity: 1000000 bytes hold no chunk: one takes 1048576. Use 1048576 or "
                "more.",
                "offload.below.capacity: 1 bytes hold no chunk: one takes 1048576. Use 1048576 or "
                "more.",
            ],
        ),
        (
            {"kind": "mooncake", "blocks_per_chunk": 2},
            [
                "offload.blocks_per_chunk: unknown key for kind mooncake. Known: kind, capacity, "
                "high_watermark, eviction_ratio, lease, link, link_efficiency, fixed_s, "
                "descriptor_s, overlap_loads."
            ],
        ),
    ],
)
def test_problems_of_tiers(offload: Any, texts: list[str]) -> None:
    assert problems(small(offload=offload)) == texts


def test_an_interval_has_to_be_whole_chunks() -> None:
    window = {"kind": "sliding_window", "block_size": 16, "sliding_window": 64}
    data = small(
        model={"groups": [{"kind": "full", "block_size": 16}, window]},
        cache={"retention_interval": 48},
        offload={"kind": "cpu", "blocks_per_chunk": 2},
    )
    assert problems(data) == [
        "cache.retention_interval: 48 is not a multiple of the chunk of group 1 (sliding-window: "
        "32 tokens). Use 0, 32, 64, ... or null, or fewer blocks a chunk."
    ]


def test_a_link_has_the_efficiency_that_was_measured() -> None:
    from kvsim.scenario.offload import link_spec

    assert link_spec("pcie-gen6-x16").efficiency == 0.8
    assert link_spec("pcie-gen6-x16", 0.7).efficiency == 0.7
    own = OwnLink(bandwidth="400 Gb/s", efficiency=0.9)
    assert link_spec(own).load_bytes_per_s == 50e9
    assert (link_spec(own).efficiency, link_spec(own, 0.5).efficiency) == (0.9, 0.5)
