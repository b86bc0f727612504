"""The part of `results/validation.md` on fleets that others measured."""

from __future__ import annotations

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
        "publication is silent, what is assumed is said. **Hit rates and orders are to be relied on;",
        "times are not**, unless said.",
        "",
        "### llm-d, 8 x 2 H100, Qwen3-32B, 3 to 60 requests a second",
        "",
        "750 prompts of 6,000 + 1,200 tokens again and again, answers of 1,000, 307,328 tokens of KV",
        "a pod, stages drained one by one (llm-d blog 2025-09-24; llm-d-kv-cache,",
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
