"""The catalog: names, origins, and the layouts against their own arithmetic."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from kvsim import catalog
from kvsim.catalog import KVGroup, Model
from kvsim.errors import KvsimError
from kvsim.planning.settings import Settings

FOLDER = Path(catalog.__file__).parent
FILES = sorted(FOLDER.glob("*.yaml"))
DISPLAY = {"source", "assumption", "name"}


def numbers_without_origin(node: Any, path: str, covered: bool) -> Iterator[str]:
    if isinstance(node, dict):
        here = covered or bool(node.get("source") or node.get("assumption"))
        for key, value in node.items():
            if key not in DISPLAY:
                yield from numbers_without_origin(value, f"{path}.{key}", here)
    elif isinstance(node, list):
        for place, value in enumerate(node):
            yield from numbers_without_origin(value, f"{path}[{place}]", covered)
    elif not covered:
        yield path


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.name)
def test_every_number_stands_beside_its_source_or_assumption(file: Path) -> None:
    entries = yaml.safe_load(file.read_text())
    assert list(numbers_without_origin(entries, file.stem, False)) == []


@pytest.mark.parametrize("name", catalog.gpu_names())
def test_gpus_load(name: str) -> None:
    gpu = catalog.gpu(name)
    assert 10e9 < gpu.hbm_bytes < 300e9
    assert 2e11 < gpu.hbm_bytes_per_s < 9e12
    if gpu.bf16_flops_per_s and gpu.fp8_flops_per_s:
        assert gpu.fp8_flops_per_s == pytest.approx(2 * gpu.bf16_flops_per_s, rel=0.03)
    assert gpu.flops_per_s("fp8") == gpu.fp8_flops_per_s
    assert set(gpu.origins) >= {"hbm_bytes", "hbm_bytes_per_s"}


@pytest.mark.parametrize("name", catalog.model_names())
def test_models_load(name: str) -> None:
    model = catalog.model(name)
    if model.total_parameters is not None:
        assert model.weight_bytes is not None
        assert model.active_parameters is not None
        assert 0 < model.active_parameters <= model.total_parameters
        assert 0 <= model.expert_bytes < model.weight_bytes
    assert model.bytes_per_block == max(group.bytes_per_block or 0 for group in model.groups)
    assert all(group.origin for group in model.groups)
    assert model.attention
    assert all(term.origin for term in model.attention)
    assert catalog.model(name) == model
    assert hash(catalog.model(name)) == hash(model)


def test_names_of_the_quick_start_are_there() -> None:
    assert {"b300", "h200"} <= set(catalog.gpu_names())
    assert {"deepseek-v4-pro", "deepseek-v4-flash"} <= set(catalog.model_names())


def test_unknown_names_give_the_nearest() -> None:
    with pytest.raises(KvsimError, match="'deepseek-v4-por'.*Did you mean 'deepseek-v4-pro'"):
        catalog.model("deepseek-v4-por")
    with pytest.raises(KvsimError, match="unknown gpu 'b301'.*'b300'"):
        catalog.gpu("b301")


PAGES = {"c4": 37_440, "c128": 1_728, "indexer": 8_640, "window": 37_440}
STATES = {"c4": 32_832, "indexer": 8_640, "c128": 32_832}


@pytest.mark.parametrize(
    ("name", "num_c4", "num_c128", "num_only_window"),
    [("deepseek-v4-pro", 30, 31, 0), ("deepseek-v4-flash", 21, 20, 2)],
)
def test_deepseek_groups_follow_from_pages_and_layers(
    name: str, num_c4: int, num_c128: int, num_only_window: int
) -> None:
    groups = {group.name: group for group in catalog.model(name).groups}
    layers = num_c4 + num_c128 + num_only_window
    wide = math.ceil(layers / 2)
    expected = {
        "window a": (wide * PAGES["window"], wide, 64, 128),
        "window b": ((layers - wide) * PAGES["window"], layers - wide, 64, 128),
        "full": (
            num_c4 * (PAGES["c4"] + PAGES["indexer"]) + num_c128 * PAGES["c128"],
            2 * num_c4 + num_c128,
            256,
            None,
        ),
        "compress-4 state": (num_c4 * (STATES["c4"] + STATES["indexer"]), 2 * num_c4, 4, 8),
        "compress-128 state": (num_c128 * STATES["c128"], num_c128, 8, 128),
    }
    assert {
        group.name: (
            group.bytes_per_block,
            group.num_layers,
            group.block_size,
            group.sliding_window,
        )
        for group in groups.values()
    } == expected
    # In the order in which their first layer appears: Pro's first layers compress 128, Flash's 4.
    states = ["compress-128 state", "compress-4 state"]
    order = ["window a", "window b", "full", *(states if not num_only_window else states[::-1])]
    assert list(groups) == order
    sizes = [group.block_size for group in groups.values()]
    assert math.lcm(*sizes) == 256
    assert math.gcd(*sizes) == 4


def test_deepseek_pro_attention_at_a_million_tokens() -> None:
    length = 1_048_576
    terms = {term.name: term for term in catalog.model("deepseek-v4-pro").attention or ()}
    window_of_layer = terms["window"].flops_per_token(length) / terms["window"].num_layers

    def with_window(name: str) -> float:
        return terms[name].flops_per_token(length) + terms[name].num_layers * window_of_layer

    assert terms["indexer"].flops_per_token(length) == pytest.approx(129e9, rel=0.005)
    assert with_window("compress-4") == pytest.approx(9.1e9, rel=0.005)
    assert with_window("compress-128") == pytest.approx(67.6e9, rel=0.005)
    assert terms["compress-4"].num_layers + terms["compress-128"].num_layers == 61


def test_deepseek_pro_weights_and_experts() -> None:
    pro = catalog.model("deepseek-v4-pro")
    assert pro.weight_bytes is not None
    assert pro.weight_bytes / 8 / 2**30 == pytest.approx(100.7, abs=0.05)
    assert pro.expert_bytes == 61 * 384 * 3 * 7168 * 3072 * 17 // 32


def test_llama_8b_needs_131072_bytes_a_token() -> None:
    group = catalog.model("llama-3.1-8b").groups[0]
    assert group.bytes_per_block is not None
    assert group.bytes_per_block / group.block_size == 131_072


def test_kv_share_follows_the_heads() -> None:
    pro, llama = catalog.model("deepseek-v4-pro"), catalog.model("llama-3.1-70b")
    assert [pro.kv_share(ranks) for ranks in (1, 8)] == [1.0, 1.0]
    planned = [catalog.model("llama-3.1-70b", Settings(tensor_parallel=n)) for n in (2, 8, 16)]
    assert llama.kv_share(1) == 1.0
    shares = zip(planned, (2, 8, 16), strict=True)
    assert [model.kv_share(ranks) for model, ranks in shares] == [0.5, 0.125, 0.125]
    given = Model("given", llama.groups, num_kv_heads=8)
    assert [given.kv_share(ranks) for ranks in (1, 2, 8, 16)] == [1.0, 0.5, 0.125, 0.125]
    with pytest.raises(KvsimError, match="tensor_parallel: 3 neither divides the 8 KV heads"):
        given.kv_share(3)
    with pytest.raises(KvsimError, match="tensor_parallel: 3 does not divide the 64 query heads"):
        catalog.model("llama-3.1-70b", Settings(tensor_parallel=3))


def test_a_custom_model_is_its_groups_alone() -> None:
    model = Model("mine", (KVGroup("full", 16, bytes_per_block=4096), KVGroup("full", 16)))
    assert model.bytes_per_block is None
    assert model.kv_share(4) == 0.25
    assert Model("mine", model.groups[:1]).bytes_per_block == 4096


@pytest.mark.parametrize("name", catalog.link_names())
def test_links_load(name: str) -> None:
    link = catalog.link(name)
    assert 1e9 < link.store_bytes_per_s <= link.load_bytes_per_s < 1e12
    assert 0.5 < link.efficiency <= 1
    assert 0 < link.latency_s < 1e-3
    assert link.sharing in ("fifo", "fair")
    assert link.span in ("rank", "node")
    assert set(link.origins) == {
        "store_bytes_per_s",
        "load_bytes_per_s",
        "efficiency",
        "latency_s",
        "sharing",
        "span",
    }


def test_pcie_is_its_rate_times_its_lanes() -> None:
    gen5, gen6 = catalog.link("pcie-gen5-x16"), catalog.link("pcie-gen6-x16")
    assert gen5.load_bytes_per_s == pytest.approx(32e9 * 16 * 128 / 130 / 8, rel=1e-3)
    assert gen6.load_bytes_per_s == 64e9 * 16 / 8


def test_networks_are_sold_in_bits() -> None:
    for gigabits in (200, 400, 800):
        assert catalog.link(f"net-{gigabits}g").load_bytes_per_s == gigabits * 1e9 / 8


def test_an_unknown_link_names_the_nearest() -> None:
    with pytest.raises(
        KvsimError, match=r"^unknown link 'pcie-gen6'\. Did you mean 'pcie-gen6-x16'\?$"
    ):
        catalog.link("pcie-gen6")
