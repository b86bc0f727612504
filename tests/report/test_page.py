"""The report: one file that needs nothing, with every section, and plots a browser shows."""

from __future__ import annotations

import base64
import html
import json
import re
import shlex
import shutil
import subprocess
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from typer.testing import CliRunner

import kvsim
from kvsim.cli import app
from kvsim.errors import KvsimError
from kvsim.report.page import default_report, report_html, write_report
from kvsim.results.tables import seconds
from kvsim.results.variants import run_variant, write_variant
from kvsim.scenario import Scenario
from kvsim.study.runs import read_runs
from kvsim.study.sweep_table import write_sweep

ROOT = Path(__file__).parents[2]
VARIANTS = {
    "append-dense": {"cache.free_queue": "append", "cache.retention_interval": None},
    "prepend-dense": {"cache.retention_interval": None},
    "prepend-boundary": {"cache.retention_interval": 0},
}
SECTIONS = [
    "Recommendation",
    "Set-up",
    "Results",
    "Plots",
    "Assumptions, and what is not modelled",
    "How to reproduce this",
]


def scenario(**more: Any) -> Scenario:
    data = {
        "name": "report-test",
        "model": "deepseek-v4-pro",
        "node": {"gpu": "b300", "gpus": 8, "num_blocks": 12_000},
        "workload": {"kind": "trace", "path": "mooncake_conversation.jsonl.gz", "limit": 220},
        **more,
    }
    return Scenario.from_data(data, directory=ROOT / "scenarios" / "traces")


@pytest.fixture(scope="module")
def run_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("runs") / "report"
    made = scenario(objective={"ttft_s": 2.0})
    for name, keys in VARIANTS.items():
        result = run_variant(made.replace(keys), name, arguments=["run", "x.yaml"])
        write_variant(path, result)
    return path


@pytest.fixture(scope="module")
def page(run_dir: Path) -> str:
    return report_html(read_runs(run_dir))


class Words(HTMLParser):
    """The text of a page, its headings, and everything it refers to."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.headings: list[str] = []
        self.refers: list[str] = []
        self.open: list[str] = []
        self.text = ""
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag not in ("meta", "link", "img", "br", "wbr"):
            self.open.append(tag)
        self.refers += [value or "" for name, value in attrs if name in ("src", "href")]

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag, f"</{tag}> closes something else"

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] == "h2":
            self.headings.append(data)
        if "style" not in self.open:
            self.text += data + "\n"


def test_every_section_in_order(page: str) -> None:
    words = Words(page)
    assert words.headings == SECTIONS
    assert words.open == []
    assert "report-test" in words.text


def test_nothing_is_needed_beside_it(page: str) -> None:
    assert all(place.startswith("data:") for place in Words(page).refers)
    assert "<script" not in page
    assert not re.search(r"url\(|@import", page)
    assert str(ROOT) not in page


def test_the_numbers_are_those_of_the_runs(page: str, run_dir: Path) -> None:
    text = Words(page).text
    for name in VARIANTS:
        summary = kvsim.load_result(run_dir / name).summary
        assert f"{summary['token_hit_rate']:.1%}" in text
        assert seconds(summary["ttft_s"]["p50"]) in text
    assert (
        "Which of the cache policies serves the trace mooncake_conversation.jsonl.gz best" in text
    )
    assert re.search(r"As keys of a scenario: \S+ is cache.free_queue: ", text)
    assert "Differences from " in text
    assert "12,000 blocks" in text
    assert "TTFT up to 2.00 s" in text
    assert "Nothing is offloaded in these runs" in text
    assert "one id stands for 512 tokens" in text
    assert "kvsim run x.yaml" in text
    assert "free_queue: append" in text
    assert "bytes per GPU" in text or "Blocks of the pool:" in text


def test_every_plot_that_these_runs_can_give(page: str) -> None:
    captions = re.findall(r"<figcaption>(.*?)[:,]", page)
    best = re.search(r"Use (\S+) \(", page)
    assert best is not None
    alone = ["append-dense"] * 3 + [best[1]] * 3 * (best[1] != "append-dense")
    assert captions == ["Policies side by side", "TTFT", "TPOT", "Survival of a prefix", *alone]
    for picture in re.findall(r'src="data:image/svg\+xml;base64,([^"]+)"', page):
        assert b"<svg" in base64.b64decode(picture)[:800]
    assert "Left out of this report" not in page
    assert len(page) < 3_000_000


def test_the_same_runs_give_the_same_report(run_dir: Path) -> None:
    one, other = (report_html(read_runs(run_dir / "prepend-dense")) for _ in range(2))
    assert one == other


def test_a_question_of_ones_own(run_dir: Path, tmp_path: Path) -> None:
    out = write_report(run_dir / "prepend-dense", tmp_path / "deep" / "r.html", "Is <it> enough?")
    text = Words(out.read_text()).text
    assert "Is <it> enough?" in text
    assert "Is <it>" not in out.read_text()  # escaped
    assert "One configuration was run, so there is nothing to choose between." in text


def test_a_trace_that_is_gone_is_said_and_the_rest_is_there(run_dir: Path, tmp_path: Path) -> None:
    moved = tmp_path / "much" / "further" / "down" / "report"
    shutil.copytree(run_dir / "prepend-dense", moved)
    words = Words(report_html(read_runs(moved)))
    assert words.headings == SECTIONS
    assert "Survival of a prefix: left out. " in words.text
    assert "The infinite-cache ceiling: left out. " in words.text


def test_a_sweep(tmp_path: Path) -> None:
    made = scenario()
    grid = {"node.num_blocks": [6_000, 12_000, 24_000], "cache.retention_interval": [None, 0]}
    sweep = kvsim.sweep(made, grid, out=tmp_path / "sweep", jobs=1)
    page = report_html(read_runs(sweep.path))
    captions = re.findall(r"<figcaption>(.*?)[:.]", page)
    assert captions[0] == "Hit rate against capacity"
    assert "Token hit rate over node" in captions
    text = Words(page).text
    assert "6,000 to 24,000 blocks" in text
    assert "At node.num_blocks 24,000: prepend, boundary is best, with the highest token" in text
    assert "prepend, dense: overloaded from" not in text  # each run has its own figures of it
    assert "requests arrived faster than they were served, at least in one run" in text
    assert "An infinite cache that keeps everything would find" in text
    assert default_report(sweep.path) == sweep.path / "report.html"
    write_report(sweep.path, default_report(sweep.path))
    assert len(kvsim.load_sweep(sweep.path)) == 6


def small(**more: Any) -> dict[str, Any]:
    """A returning prompt beside others, in a pool where that matters."""
    return {
        "name": "small",
        "model": {
            "groups": [
                {"kind": "full", "block_size": 16, "bytes_per_block": 4096},
                {
                    "kind": "sliding_window",
                    "block_size": 16,
                    "sliding_window": 64,
                    "bytes_per_block": 4096,
                },
            ]
        },
        "node": {"num_blocks": 300},
        "step_time": {"kind": "constant", "step_s": 0.01},
        "workload": {
            "kind": "script",
            "requests": [
                {"prompt": [["A", 1000]], "output": 2},
                {"prompt": [["B", 1500]], "output": 2, "at_s": 1},
                {"prompt": [["A", 1000], ["C", 50]], "output": 2, "at_s": 2},
            ],
        },
        **more,
    }


def written(path: Path, variants: dict[str, dict[str, Any]], **more: Any) -> Path:
    for name, keys in variants.items():
        made = Scenario.from_data(small(**more)).replace(keys)
        write_variant(path, run_variant(made, name, arguments=["run", "x.yaml"]))
    return path


def test_runs_of_different_set_ups_are_told_apart_and_not_ranked(tmp_path: Path) -> None:
    """As `run --only boundary --set node.num_blocks=900` into the same directory leaves it."""
    dense, boundary = {"cache.retention_interval": None}, {"cache.retention_interval": 0}
    path = written(
        tmp_path / "mixed",
        {
            "dense": {**dense, "node.num_blocks": 180},
            "interval": {"cache.retention_interval": 256, "node.num_blocks": 180},
            "boundary": {**boundary, "node.num_blocks": 900},
        },
    )
    page = report_html(read_runs(path))
    words = Words(page)
    said = (
        "These runs differ in more than their policy: node.num_blocks 180 (dense, interval), 900 "
        "(boundary). Policies are ranked only among runs that have the rest in common."
    )
    assert said in words.text
    assert words.text.index(said) < words.text.index("Recommendation")
    assert "Use boundary" not in words.text
    assert "At node.num_blocks 900: only boundary was run." in words.text
    assert "At node.num_blocks 180: " in words.text
    assert "Differences from" not in words.text


def test_many_differences_are_one_set_up(tmp_path: Path) -> None:
    other = {
        "node.num_blocks": 900,
        "engine.max_num_seqs": 7,
        "engine.max_num_batched_tokens": 512,
        "step_time.step_s": 0.02,
        "cache.retention_interval": 0,
    }
    runs = read_runs(written(tmp_path / "mixed", {"a": {}, "b": other}))
    assert runs.axes == ("set-up",)
    assert list(runs.frame["set-up"]) == ["that of a", "that of b"]
    assert "engine.max_num_seqs " in runs.told_first[0]
    assert "cache.retention_interval" not in runs.told_first[0]


def test_the_advice_does_not_name_the_worst(tmp_path: Path) -> None:
    """All within the objective: what is found decides, and equal ones are called equal."""
    path = written(
        tmp_path / "plan",
        {
            "nothing": {"cache.enable_prefix_caching": False},
            "boundary": {"cache.retention_interval": 0},
            "interval": {"cache.retention_interval": 256},
        },
        objective={"ttft_s": 60},
        node={"num_blocks": 900},
    )
    text = Words(report_html(read_runs(path))).text
    found = re.search(r"Use (.*?): the highest token hit rate of 3 that tie in goodput", text)
    assert found is not None
    assert "boundary" in found[1]
    assert "interval" in found[1]
    assert "are equal in goodput, token hit rate and TTFT p50" in found[1]
    assert "Behind by token hit rate: nothing." in text


def test_a_report_says_first_what_of_a_sweep_is_missing(tmp_path: Path) -> None:
    data = small(sweep={"grid": {"node.num_blocks": [100, 300, 400]}})
    sweep = kvsim.sweep(Scenario.from_data(data), out=tmp_path / "sweep", jobs=1)
    table = sweep.table
    shutil.rmtree(sweep.path / table["run"][2])
    cut = table.assign(status=["failed", "done", "not run"])
    write_sweep(sweep.path, sweep.scenario, cut)
    words = Words(report_html(read_runs(sweep.path)))
    said = "1 of 3 runs (1 not run, 1 failed). The sweep was cut short: kvsim sweep again runs"
    assert said in words.text
    assert words.text.index(said) < words.text.index("Recommendation")


def test_a_long_answer_is_cut_to_five_sentences(tmp_path: Path) -> None:
    grid = {"node.num_blocks": [180, 300, 400], "cache.free_queue": ["append", "prepend-uncached"]}
    variants = {f"v{n}": {"cache.retention_interval": 256 * n} for n in range(4)}
    data = small(variants=variants, sweep={"grid": grid})
    sweep = kvsim.sweep(Scenario.from_data(data), out=tmp_path / "sweep", jobs=1)
    page = report_html(read_runs(sweep.path))
    box = re.search(r'<div class="recommendation"><ul>(.*?)</ul>', page)
    assert box is not None
    assert box[1].count("<li>") == 5
    assert "Further findings" in Words(page).headings


def test_refusals_name_the_pool(tmp_path: Path) -> None:
    path = written(
        tmp_path / "r", {"a": {}, "b": {"cache.free_queue": "append"}}, node={"num_blocks": 180}
    )
    text = Words(report_html(read_runs(path))).text
    refused = kvsim.load_result(path / "a").summary["num_refused"]
    assert (f"a: {refused} of 3 requests were refused, as the pool (180 blocks)" in text) == bool(
        refused
    )


def figures_by_run(runs: Any) -> dict[tuple[str, ...], dict[str, Any]]:
    """Every figure but real time, by run; what is null or not there is None.

    Runs made at once may stand in another order, and nulls of a column then come in another form.
    """
    axes = [axis for axis in runs.axes if axis in runs.frame]
    found = {}
    for row in runs.frame.drop(columns="wall_s").to_dict("records"):
        key = (str(row["label"]), *(str(row[axis]) for axis in axes))
        found[key] = {name: None if pd.isna(value) else value for name, value in row.items()}
    return found


@pytest.mark.parametrize("kind", ["run", "sweep"])
def test_what_it_says_makes_it_again(kind: str, tmp_path: Path, monkeypatch: Any) -> None:
    """The scenario and the commands on the page, in an empty place, give the same figures."""
    monkeypatch.chdir(tmp_path)
    if kind == "run":
        tier = {"kind": "cpu", "capacity": "1 MiB", "link": "pcie-gen5-x16"}
        path = written(
            tmp_path / "runs",
            {"base": {}, "tier": {"offload": tier}, "wide": {"engine.max_num_seqs": 3}},
        )
    else:
        data = small(variants={"a b": {}}, sweep={"grid": {"node.num_blocks": [300, 400]}})
        path = kvsim.sweep(Scenario.from_data(data), out=tmp_path / "runs", jobs=1).path
    runs = read_runs(path)
    page = report_html(runs)
    shown = page[page.index("How to reproduce this") :]
    lines, text = (html.unescape(part) for part in re.findall(r"<pre>(.*?)</pre>", shown, re.S))
    (tmp_path / "small.yaml").write_text(text)
    for line in lines.splitlines():
        program, *arguments = shlex.split(line)
        assert program == "kvsim"
        assert CliRunner().invoke(app, arguments).exit_code == 0
    again = read_runs(tmp_path / "small-again")
    assert (tmp_path / "small-again" / "report.html").is_file()
    first, second = (figures_by_run(one) for one in (runs, again))
    assert first == second


def test_a_report_goes_where_a_run_can_still_be_replaced(run_dir: Path) -> None:
    assert default_report(run_dir) == run_dir / "report.html"
    one = run_dir / "prepend-dense"
    assert default_report(one) == run_dir / "prepend-dense-report.html"
    with pytest.raises(KvsimError) as caught:
        write_report(one, one / "summary.json" / "r.html")
    assert str(caught.value).endswith("r.html: cannot be written: File exists. Give another --out.")


def test_nothing_to_report(tmp_path: Path) -> None:
    with pytest.raises(KvsimError) as caught:
        read_runs(tmp_path / "gone")
    assert str(caught.value) == (
        f"{tmp_path / 'gone'}: 1 problem\n  path: there is no such directory. Give the directory "
        "of a result."
    )


# --- in a browser ---

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
FLAGS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--enable-logging=stderr",
    "--window-size=1100,1400",
]
MEASURE = """
<pre id="measured"></pre>
<script>
addEventListener("load", () => {
  const pictures = [...document.images].map(
    (image) => [image.complete, image.naturalWidth, image.clientWidth, image.clientHeight]);
  const wide = document.documentElement.scrollWidth - document.documentElement.clientWidth;
  document.getElementById("measured").textContent = JSON.stringify({pictures, wide});
});
</script>
"""


def browser(tmp_path: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(CHROMIUM), *FLAGS, f"--user-data-dir={tmp_path / 'profile'}", *arguments],
        capture_output=True,
        text=True,
        timeout=90,
        check=True,
    )


@pytest.mark.skipif(CHROMIUM is None, reason="Chromium is not installed")
def test_a_browser_shows_it(page: str, tmp_path: Path) -> None:
    file = tmp_path / "report.html"
    file.write_text(page.replace("</body>", f"{MEASURE}</body>"))
    done = browser(tmp_path, "--dump-dom", file.as_uri())
    assert "CONSOLE" not in done.stderr
    measured = re.search(r'<pre id="measured">(.*?)</pre>', done.stdout)
    assert measured is not None
    found = json.loads(measured[1])
    assert len(found["pictures"]) == page.count("<figure>") >= 6
    for complete, natural, width, height in found["pictures"]:
        assert complete
        assert natural > 100
        assert width > 600
        assert height > 100
    assert found["wide"] == 0  # nothing sticks out to the right


@pytest.mark.skipif(CHROMIUM is None, reason="Chromium is not installed")
def test_it_prints(page: str, tmp_path: Path) -> None:
    file, pdf = tmp_path / "report.html", tmp_path / "report.pdf"
    file.write_text(page)
    browser(tmp_path, "--no-pdf-header-footer", f"--print-to-pdf={pdf}", file.as_uri())
    content = pdf.read_bytes()
    assert content.startswith(b"%PDF")
    assert 3 <= len(re.findall(rb"/Type\s*/Page\b", content)) <= 20


@pytest.mark.skipif(CHROMIUM is None, reason="Chromium is not installed")
@pytest.mark.skipif(shutil.which("pdftotext") is None, reason="pdftotext is not installed")
def test_a_printed_table_keeps_all_its_columns(page: str, tmp_path: Path) -> None:
    """The widest there is: a name, three axes, fifteen figures; and no unit is cut off."""
    head = ["Run", "node.num_<wbr>blocks", "offload.<wbr>capacity", "workload.<wbr>time_<wbr>scale"]
    cells = [f"{n + 100} ms" for n in range(18)]
    table = "<tr>" + "".join(f"<th>{text}</th>" for text in [*head, *["Request hit rate"] * 15])
    table += "</tr><tr>" + "".join(f"<td>{text}</td>" for text in ["a-long-name", *cells]) + "</tr>"
    start = page.index('<table class="numbers">')
    end = page.index("</table>", start)
    file, pdf = tmp_path / "report.html", tmp_path / "report.pdf"
    file.write_text(f'{page[:start]}<table class="numbers">{table}{page[end:]}')
    browser(tmp_path, "--no-pdf-header-footer", f"--print-to-pdf={pdf}", file.as_uri())
    command = ["pdftotext", "-layout", str(pdf), "-"]
    text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    (line,) = [line for line in text.splitlines() if "117 ms" in line]
    assert re.findall(r"\d{3} ms", line) == cells
