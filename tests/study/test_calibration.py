"""Calibrations find constants they were given, and say where points do not speak."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path

import pytest

from kvsim.errors import Problems
from kvsim.study.bench_times import errors_of, predict
from kvsim.study.calibration import Calibration, calibrate
from kvsim.study.measured import Point, make_point
from kvsim.times.constants import Constants, catalog_constants, constants_of, constants_yaml

GIVEN = {"request_s": 2.0, "layer_s": 1.8, "peak_dense": 0.7}
LOADS = [(isl, concurrency) for isl in (128, 2048, 6000) for concurrency in (1, 4, 16, 48)]


def altered(**factors: float) -> Constants:
    entries = [
        e if e.condition else dataclasses.replace(e, value=e.value * factors.get(e.name, 1.0))
        for e in catalog_constants().entries
    ]
    return Constants(entries, {})


def measured(
    loads: Sequence[tuple[int, int]], constants: Constants, gpu: str = "h100", **cells: str
) -> list[Point]:
    """Points that a server with these constants would give."""
    points = []
    for number, (isl, concurrency) in enumerate(loads):
        row = {
            "id": f"{gpu}-{number}",
            "model": "llama-3.1-8b",
            "gpu": gpu,
            "precision": "bf16",
            "engine": "vllm",
            "tp": "1",
            "ep": "1",
            "isl": str(isl),
            "osl": "32",
            "concurrency": str(concurrency),
            "num_prompts": str(2 * concurrency + 4),
            "ttft_mean_s": "1",
            "tpot_mean_s": "1",
        } | cells
        seen = predict(make_point(row), constants)
        times = {"ttft_mean_s": str(seen.ttft_s), "tpot_mean_s": str(seen.tpot_s)}
        points.append(make_point(row | times | cells))
    return points


@pytest.fixture(scope="module")
def own_points() -> list[Point]:
    return measured(LOADS, altered(**GIVEN))


@pytest.fixture(scope="module")
def found(own_points: list[Point]) -> Calibration:
    return calibrate(own_points, "mine")


def factors(found: Calibration) -> dict[str, float]:
    return {move.label: move.after / move.before for move in found.moves}


def test_it_recovers_constants_it_was_given(own_points: list[Point]) -> None:
    # Little is held at the catalog's here, so that the points alone speak.
    moved = factors(calibrate(own_points, "mine", prior_part=2.0))
    for name, factor in GIVEN.items():
        assert moved[name] == pytest.approx(factor, rel=0.1), name


def test_few_points_move_constants_most_of_the_way(found: Calibration) -> None:
    moved = factors(found)
    for name, factor in GIVEN.items():
        assert moved[name] == pytest.approx(factor, rel=0.15), name
    others = [move for move in found.moves if move.name not in GIVEN]
    assert all(abs(move.after / move.before - 1) < 0.2 for move in others)
    assert {move.label for move in found.moved[:3]} == set(GIVEN)


def test_held_back_points_come_out_nearer(found: Calibration) -> None:
    before, held = errors_of(found.before), errors_of(found.held_back)
    assert found.helps
    assert held[0].median < before[0].median / 2
    assert held[1].median < before[1].median / 3
    assert (found.parts, found.held_back_by) == (3, "load point")
    assert [p.point.row["id"] for p in found.held_back] == [p.point.row["id"] for p in found.before]


def test_what_points_do_not_speak_of_stays(found: Calibration) -> None:
    by_name = {move.label: move for move in found.moves}
    # One GPU, no experts, no drafts.
    for name in ("link_all_reduce", "hbm_experts", "acceptance", "expert_padding_tokens"):
        assert not by_name[name].moved and by_name[name].said == pytest.approx(0, abs=1e-6)
        assert name in found.not_identified
    assert "layer_s" not in found.not_identified
    # A factor that every point shares is not told from what it multiplies.
    assert not any(move.condition for move in found.moves)


def test_points_of_the_catalogs_own_server_move_nothing() -> None:
    found = calibrate(measured(LOADS[::3], catalog_constants()), "mine")
    assert found.moved == []


def test_the_fragment_holds_what_moved_and_is_read_again(
    found: Calibration, tmp_path: Path
) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(constants_yaml(found.fragment(), whole=False), encoding="utf-8")
    read = constants_of(path)
    assert [(e.name, e.condition, e.value) for e in read.entries] == [
        (e.name, e.condition, e.value) for e in found.constants.entries
    ]
    assert "acceptance" not in path.read_text(encoding="utf-8")
    fit = read.fit
    assert fit["points"] == len(LOADS)
    assert fit["range"]["sequences"] == 48
    assert 6000 < fit["range"]["context_tokens"] < 6700
    assert fit["tpot_held_out"][0] < fit["tpot_before"][0]
    assert list(fit["set_ups"]) == ["llama-3.1-8b|h100|vllm|bf16|1|1"]


def test_set_ups_are_held_back_whole_and_told_apart() -> None:
    slower = altered(layer_s=1.5)
    loads = [(512, 1), (512, 16), (3000, 8)]
    points = [p for gpu in ("h100", "h200", "b200") for p in measured(loads, slower, gpu)]
    found = calibrate(points, "mine")
    assert (found.parts, found.held_back_by) == (3, "set-up")
    moved = factors(found)
    assert moved["layer_s"] == pytest.approx(1.5, rel=0.15)
    # Hopper and Blackwell are both there, and differ as the catalog says.
    assert moved["layer_s (hopper)"] == pytest.approx(1, abs=0.1)
    assert found.helps


def test_bad_points_are_refused() -> None:
    slower = catalog_constants()
    single = measured(LOADS[:1], slower)
    with pytest.raises(Problems, match=r"llama-3\.1-8b\|h100\|vllm\|bf16\|1\|1 has one point"):
        calibrate(single, "mine")
    both = measured(LOADS[:2], slower, "h200")
    with pytest.raises(Problems, match="has one point"):
        calibrate([*single, *both], "mine")
    in_ms = measured(LOADS[:3], slower, tpot_mean_s="9.5")
    with pytest.raises(Problems, match=r"3 problems(.|\n)*tpot: measured 9\.5 s, simulated 0\.00"):
        calibrate(in_ms, "mine")
    elsewhere = measured(LOADS[:2], slower)
    apart = [dataclasses.replace(p, left_out="not one engine") for p in elsewhere]
    with pytest.raises(Problems, match=r"no point can be simulated(.|\n)*h100-0: not one engine"):
        calibrate(apart, "mine")
