"""Plots of fleets: what they show, and what they refuse."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from kvsim import plots
from kvsim.cli import app
from kvsim.errors import KvsimError
from kvsim.plots.fleet_style import router_styles, run_styles
from kvsim.report.page import report_html
from kvsim.results.variants import write_variant
from kvsim.study.fleets import replica_series
from kvsim.study.links import link_series
from kvsim.study.runs import read_runs
from tests.fleet.results import apart, laid_out, routed, with_links, with_loss

ROUTERS = ("random", "session", "oracle")


def test_load_and_hits_of_each_replica() -> None:
    result = with_loss(True)
    load, hits = plots.replicas_over_time(result)
    series = replica_series(result)
    for ax, values in ((load, series.queue), (hits, series.hit_rate)):
        drawn = np.ma.filled(ax.collections[0].get_array().astype(float), np.nan)
        np.testing.assert_array_equal(drawn.reshape(values.shape), values)
    assert [text.get_text() for text in load.get_yticklabels()] == ["0", "1", "2"]
    assert load.get_ylim() == (2.5, -0.5)
    assert [text.get_text() for text in load.texts] == ["1 lost", "1 ready"]
    assert load.get_ylabel() == "Replica of lost"


def test_both_pools_are_shown() -> None:
    load, _ = plots.replicas_over_time(apart(), name="a name that is too long for an axis")
    names = [text.get_text() for text in load.get_yticklabels()]
    assert names == ["prefill 0", "decode 1", "decode 2"]
    assert load.get_ylabel() == "Replica"


def test_routers_side_by_side() -> None:
    frame = plots.frame([routed(name) for name in ROUTERS])
    hits, lost, _, load = plots.routers_side_by_side(frame)
    for ax, column in (
        (hits, "token_hit_rate"),
        (lost, "fleet.misrouted_share"),
        (load, "fleet.imbalance.load"),
    ):
        assert [bar.get_width() for bar in ax.patches] == frame[column].tolist()
    assert [text.get_text() for text in hits.get_yticklabels()] == list(ROUTERS)


def test_layouts_side_by_side() -> None:
    frame = plots.frame([laid_out(1), laid_out(2), laid_out(4)])
    hits, _, tpot = plots.layouts_side_by_side(frame)
    names = [text.get_text() for text in hits.get_yticklabels()]
    assert names == ["dp1 (TP4)", "dp2 (TP2 x DP2)", "dp4 (DP4)"]
    assert [bar.get_width() for bar in tpot.patches] == frame["tpot_s.p50"].tolist()


def test_layouts_by_load() -> None:
    frame = plots.frame([laid_out(1), laid_out(4)])
    more = frame.assign(arrivals_per_s=2 * frame["arrivals_per_s"])
    import pandas as pd

    hits, ttft, _ = plots.layouts_by_load(pd.concat([frame, more], ignore_index=True))
    assert [line.get_label() for line in ttft.lines] == ["dp1", "dp4"]
    assert hits.lines[0].get_xdata()[1] == pytest.approx(2 * hits.lines[0].get_xdata()[0])
    assert hits.get_ylim()[0] == 0


def test_recovery_beside_the_run_without_a_loss() -> None:
    ax = plots.recovery([with_loss(False), with_loss(True)])
    assert [line.get_label() for line in ax.lines][:2] == ["still", "lost"]
    assert [text.get_text() for text in ax.texts] == ["1 lost", "1 ready"]
    assert not ax.collections  # what was before a loss is drawn where there is nothing beside it
    alone = plots.recovery(with_loss(True))
    assert len(alone.collections) == 1


def test_what_is_no_fleet_is_refused() -> None:
    with pytest.raises(KvsimError, match="result: has one replica. Use fleet.nodes or node.data_p"):
        plots.replicas_over_time(laid_out(1))
    with pytest.raises(KvsimError, match="is a DataFrame, not the result of a run"):
        plots.replicas_over_time(plots.frame(laid_out(1)))  # type: ignore[arg-type]
    with pytest.raises(KvsimError, match="frame: no run is of several replicas. Set fleet:"):
        plots.routers_side_by_side(plots.frame(laid_out(1)))
    with pytest.raises(KvsimError, match="no run has nodes that come and go. Set fleet.events"):
        plots.recovery([routed("random"), routed("session")])


def test_a_router_has_one_colour_everywhere() -> None:
    one, two, again = router_styles(["session", "my:Own", "session"])
    assert one.color == again.color != two.color
    assert one.hatch != again.hatch
    assert len({style.dash for style in (one, two, again)}) == 3
    by_router = run_styles([routed(name).scenario for name in ROUTERS])
    assert [style.color for style in by_router] == [s.color for s in router_styles(ROUTERS)]
    alike = run_styles([routed("random").scenario] * 2)
    assert alike[0].color == run_styles([laid_out(1).scenario])[0].color


def test_bytes_by_link() -> None:
    result = with_links(2)
    links = result.summary["fleet"]["links"]
    ax, busy = plots.links_by_bytes(result)
    drawn = [bar.get_width() * 1e6 for bar in ax.patches]
    stored, loaded = ([link[f"{way}_bytes"] for link in links] for way in ("stored", "loaded"))
    assert drawn == pytest.approx([*stored, *loaded])
    names = [text.get_text() for text in ax.get_yticklabels()]
    assert names == ["0.0: CPU", "0.1: CPU", "1.0: CPU", "1.1: CPU"]
    assert ax.get_xlabel() == "Stored and loaded (MB, share of capacity)"
    shares = np.ma.filled(busy.collections[0].get_array().astype(float), np.nan)
    series = link_series(result, 64)
    assert series is not None
    np.testing.assert_array_equal(shares.reshape(series.busy.shape), series.busy)


@pytest.mark.parametrize("is_shared", [False, True])
def test_what_links_carry_over_time_adds_up(is_shared: bool) -> None:
    result = with_links(2, is_shared=is_shared)
    series = link_series(result, 64)
    assert series is not None
    if is_shared:
        assert series.names == ("node 0: CPU", "node 1: CPU")
    lengths_s = np.diff(series.edges_s)
    for number, link in enumerate(result.summary["fleet"]["links"]):
        assert link["store_bytes_per_s"] == link["load_bytes_per_s"] == 4e6
        for way, carried in enumerate((link["stored_bytes"], link["loaded_bytes"])):
            over_time = float(np.nansum(series.busy[number, way] * lengths_s)) * 4e6
            # What was carried after the last row of its timeline is in no row.
            assert over_time == pytest.approx(carried, rel=0.05)
        up_s = result.summary["fleet"]["replicas"][2 * link["node"]]["up_s"]
        assert link["store_utilization"] == pytest.approx(link["stored_bytes"] / 4e6 / up_s)


def test_of_too_many_links_those_that_carry_most_are_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    result = with_links(2)
    monkeypatch.setattr("kvsim.plots.links.MOST_LINKS", 3)
    monkeypatch.setattr("kvsim.plots.links._MOST_NOTED", 2)
    ax, _ = plots.links_by_bytes(result)
    assert ax.get_title(loc="left") == "Bytes by link: 3 of 4 links"
    assert not ax.texts
    links = result.summary["fleet"]["links"]
    least = min(range(4), key=lambda n: links[n]["stored_bytes"] + links[n]["loaded_bytes"])
    names = [text.get_text() for text in ax.get_yticklabels()]
    assert f"{least // 2}.{least % 2}: CPU" not in names


def test_links_between_pools_and_none() -> None:
    ax, _ = plots.links_by_bytes(apart())
    names = [text.get_text() for text in ax.get_yticklabels()]
    assert names == ["prefill 0: other pool", "decode 1: other pool", "decode 2: other pool"]
    with pytest.raises(KvsimError, match="result: has no link. Set offload: or fleet.pools"):
        plots.links_by_bytes(routed("random"))


def test_the_command_and_the_report_show_the_links_of_a_fleet(tmp_path: Path) -> None:
    out = tmp_path / "runs"
    write_variant(out, with_links(2))
    picture = tmp_path / "links.png"
    done = CliRunner().invoke(app, ["plot", "links", str(out), "--out", str(picture)])
    assert done.exit_code == 0, done.output
    assert picture.stat().st_size > 10_000
    page = report_html(read_runs(out))
    assert "links: bytes stored and loaded by each" in page
    assert "link utilization over time" not in page  # that mixes the links of all replicas
