"""The part of `results/validation.md` on fleets that others measured."""

from __future__ import annotations

from pathlib import Path

LADDER = {
    "precise": (8730, 0.298, 0.542),
    "approximate": (6944, 13.3, 31.1),
    "random": (4429, 45.3, 92.6),
    "load": (4266, 47.0, 94.9),
}
"""Output tokens a second, TTFT mean and p90 in s: means over the stages of the report."""
LADDER_SAYS = (
    "The order is the published one but for random and load, which stand 4% apart there, 8% the",
    "other way here: neither looks at prefixes, and both find about a sixth. No hit rates were",
    "published; these are what the throughputs imply. The approximate index of that release looks",
    "at 4,096 tokens of a prompt, so it takes whoever had the group for a full match and sends a",
    "question away from the pod that has it: `tests/data/published/routers.py` has it as it was",
    "configured. Its TTFT is twice the published one: it saturates earlier here.",
)
SHARED = {"round-robin": ("20%", 82_665), "cache-aware": ("over 70%", 158_597)}
SHARED_SAYS = (
    "The order and the cache-aware rate are held. **Round robin's 20% is not**: of 128 prompts a",
    "worker gets, drawn from 64 groups, 56 are the first of theirs, so an engine that finds what",
    "earlier prompts left hits 53% by counting, whatever it takes. 20% and 70% together are what",
    "about five prompts a group give on eight workers, or an engine that does not find a prefix",
    "which is computed in the same batch (SGLang of November 2024); which of them, is not said.",
    "Against few prompts a group speaks the tool's first run (#1990): 1,024 prompts of 2,272",
    "tokens on four workers by round robin at 42,652 tok/s, as much a worker as on eight, though",
    "by counting they find 71% of the tokens. So throughput gains 16% here, not 92%.",
)
REPEATED = {
    "round-robin": ("17.4%", 11.58),
    "cache-aware": ("26.5%", 28.85),
    "cache-aware, events": ("24.6%", 27.52),
}
REPEATED_SAYS = (
    "The order is held: round robin finds least, the tree of its own decisions at least as much as",
    "events, which are blind to what is being computed. Round robin's rate is near with the",
    "benchmark's own lengths; **the cache-aware ones are not held**. Without eviction 2 of 3",
    "requests find their prefix on one worker, and 0.89 of 3 by chance on three: a ratio of 0.44",
    "whatever the lengths. The published 0.66 is higher: the cache-aware runs there lost about a",
    "third or more of what they could find. Why cannot be told: neither the pool nor the lengths",
    "are published, and its engine, TokenSpeed, is not modelled. Round robin at 11.6 a second",
    "with a median TTFT of 0.14 s and a p99 of 105 s looks like one stuck worker of three; here",
    "all three keep up with short answers, and none with long ones.",
)
AGENTS_SAY = (
    "Held: counting gives 95.6% where answers are not put in the store (as the engine's default),",
    "96.8% where they are. One node of 4 GPUs stands for the published 4 that prefill and 8 that",
    "decode, since a store beside pools is not simulated yet; the hit rate does not depend on it,",
    "times do. The row of 60 GPUs has a fifteenth of the published sessions, to save time: the",
    "store holds them all in either case.",
)

VALIDATION = Path(__file__).parents[2] / "results" / "validation.md"
Figures = dict[str, dict[str, dict[str, float]]]
BEGIN, END = "<!-- published fleets -->", "<!-- end of published fleets -->"


def part(kept: Figures) -> str:
    """The part, in Markdown, between its marks."""
    ladder, shared = kept["ladder"], kept["shared-prefix"]
    repeated, agents = kept["prefix-repetition"], kept["agents"]
    lines = [
        BEGIN,
        "Made by `python -m tests.published`; the set-ups are in `tests/published/set_ups.py`.",
        "Nothing is fitted: routers, pools, prompts, arrivals and answers as published; where the",
        "publication is silent, what is assumed is said. **Hit rates and orders are held; times",
        "are not to be trusted**: engines, releases and machines differ.",
        "",
        "### llm-d, 8 x 2 H100, Qwen3-32B, 3 to 60 requests a second",
        "",
        "750 prompts of 6,000 + 1,200 tokens again and again, answers of 1,000, 307,328 tokens of",
        "KV a pod, stages drained one by one (llm-d blog 2025-09-24; llm-d-kv-cache,",
        "`benchmarking/73-capacity`). Means over the 16 stages, published / kvsim:",
        "",
        "| router | output tok/s | mean TTFT, s | p90 TTFT, s | token hits (kvsim) |",
        "|---|---|---|---|---|",
    ]
    for name, (rate, mean_s, p90_s) in LADDER.items():
        one = ladder[name]
        lines.append(
            f"| {name} | {rate:,} / {one['output_tokens_per_s']:,.0f} "
            f"| {mean_s:.1f} / {one['ttft_mean_s']:.1f} "
            f"| {p90_s:.1f} / {one['ttft_p90_s']:.1f} | {one['hit_rate']:.1%} |"
        )
    lines += [
        "",
        *LADDER_SAYS,
        "",
        "### SGLang, 8 x Llama-3.1-8B: cache-aware against round robin",
        "",
        "The benchmark's own 64 groups of 16 prompts, 2,048 + 128 tokens, answers of 256, all at",
        "once (sglang #2170, #1990, v0.4 blog). Published / kvsim:",
        "",
        "| router | token hits | input tok/s |",
        "|---|---|---|",
    ]
    for name, (hits, rate) in SHARED.items():
        one = shared[name]
        lines.append(
            f"| {name} | {hits} / {one['hit_rate']:.1%} "
            f"| {rate:,} / {one['input_tokens_per_s']:,.0f} |"
        )
    lines += [
        "",
        *SHARED_SAYS,
        "",
        "### smg, 3 workers of 2 H100, a 32B model: 600 prefixes of 1,024 tokens",
        "",
        "1,800 requests at 32 a second, each prefix three times (smg #1771, method #1652). Suffix",
        "and answer are not published: once the benchmark's own 256 + 128, once 1,024 + 512.",
        "",
        "| router | published hits | 256 + 128 | 1,024 + 512 | published req/s | kvsim |",
        "|---|---|---|---|---|---|",
    ]
    for name, (hits, rate) in REPEATED.items():
        short, long = repeated[f"{name}, 256 + 128"], repeated[f"{name}, 1024 + 512"]
        lines.append(
            f"| {name} | {hits} | {short['hit_rate']:.1%} | {long['hit_rate']:.1%} | {rate} "
            f"| {short['requests_per_s']:.1f} / {long['requests_per_s']:.1f} |"
        )
    lines += [
        "",
        *REPEATED_SAYS,
        "",
        "### One Mooncake store, agents, round robin",
        "",
        "Sessions of 30 turns: 20,000 common and 10,000 own tokens, 2,048 more a turn, answers of",
        "900; Kimi on GB200 (vLLM blog 2026-05-06: 12 to 60 GPUs, 75 to 375 sessions).",
        "",
        "| fleet | published hits | kvsim |",
        "|---|---|---|",
    ]
    lines += [f"| {name} | > 95% | {one['hit_rate']:.1%} |" for name, one in sorted(agents.items())]
    lines += ["", *AGENTS_SAY, END]
    return "\n".join(lines) + "\n"


def replaced(text: str, made: str) -> str:
    """The document with the part in place of the one it has."""
    return text[: text.index(BEGIN)] + made + text[text.index(END) + len(END) + 1 :]
