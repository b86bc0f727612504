"""Which layers a model has, by its architecture (vLLM 0.33.0's model classes).

An architecture that is not in `FAMILIES` is an error, never a guess.
"""

from __future__ import annotations

from collections.abc import Callable

from kvsim.errors import KvsimError, nearest
from kvsim.planning import layers, states
from kvsim.planning.config import BY_HAND, Config
from kvsim.planning.layers import Layer

Family = Callable[[Config], list[Layer]]
_TYPES = ("full_attention", "sliding_attention")


def layers_of(config: Config) -> list[Layer]:
    """The layers of a model that hold KV or states, in the engine's order.

    Raises:
        KvsimError: its architecture is not known.
        Problems: fields are missing, wrong, or contradict each other.
    """
    found = family_of(config)(config)
    if config.query_heads % min(config.kv_heads, config.query_heads):
        config.wrong(
            f"num_key_value_heads: {config.kv_heads} does not divide the {config.query_heads} "
            "query heads. Correct one."
        )
    config.raise_problems()
    return found


def architecture_of(config: Config) -> str:
    """The model class of a config; of a multimodal one, that of its text part."""
    if config.architecture not in FAMILIES and config.is_part:
        return TEXT_PARTS.get(config.model_type, config.architecture)
    return config.architecture


def family_of(config: Config) -> Family:
    """How the layers of a config's architecture are listed.

    Raises:
        KvsimError: the architecture is not known.
    """
    name = architecture_of(config)
    if name in FAMILIES:
        return FAMILIES[name]
    near = nearest(config.architecture, FAMILIES)
    advice = f" Did you mean '{near}'?" if near else ""
    part = f" with a text part of model_type '{config.model_type}'" if config.is_part else ""
    raise KvsimError(
        f"{config.where}: architectures: '{config.architecture}'{part} is not known, so which of "
        f"its layers hold what cannot be said.{advice} {BY_HAND}"
    )


def _sliding(config: Config) -> int:
    return config.count("sliding_window")


def _plain(config: Config) -> list[Layer]:
    """Grouped-query attention; windows by layer_types, or in every layer."""
    heads, size, number = config.kv_heads, config.head_size, config.num_layers
    kinds = config.entries("layer_types", number, _TYPES)
    if kinds is None:
        kinds = ["sliding_attention" if config.has("sliding_window") else _TYPES[0]] * number
    return [
        layers.window(i, _sliding(config), heads, size)
        if kind == "sliding_attention"
        else layers.full(i, heads, size)
        for i, kind in enumerate(kinds)
    ]


def _qwen(config: Config) -> list[Layer]:
    """Counts a window only where ``use_sliding_window`` says so."""
    if not config.flag("use_sliding_window"):
        number = config.num_layers
        return [layers.full(i, config.kv_heads, config.head_size) for i in range(number)]
    first = config.count("max_window_layers", default=config.num_layers, least=0)
    if first < config.num_layers and not config.has("layer_types"):
        config.wrong(
            f"max_window_layers: {first} of {config.num_layers} layers with use_sliding_window is "
            f"not understood. {BY_HAND}"
        )
    return _plain(config)


def _full_only(config: Config) -> list[Layer]:
    return [layers.full(i, config.kv_heads, config.head_size) for i in range(config.num_layers)]


def _gemma2(config: Config) -> list[Layer]:
    return _alternating(config, lambda i: i % 2 == 0)


def _gemma3(config: Config) -> list[Layer]:
    pattern = config.count("sliding_window_pattern", "_sliding_window_pattern", default=6)
    return _alternating(config, lambda i: (i + 1) % pattern != 0)


def _gpt_oss(config: Config) -> list[Layer]:
    return _alternating(config, lambda i: i % 2 == 0)


def _alternating(config: Config, slides: Callable[[int], bool]) -> list[Layer]:
    heads, size, number = config.kv_heads, config.head_size, config.num_layers
    kinds = config.entries("layer_types", number, _TYPES)
    if kinds is None:
        kinds = ["sliding_attention" if slides(i) else "full_attention" for i in range(number)]
    return [
        layers.window(i, _sliding(config), heads, size)
        if kind == "sliding_attention"
        else layers.full(i, heads, size)
        for i, kind in enumerate(kinds)
    ]


def _gemma4(config: Config) -> list[Layer]:
    number = config.num_layers
    kinds = config.entries("layer_types", number, _TYPES)
    if kinds is None:
        config.wrong("layer_types: is missing. Gemma 4 says there which layers slide.")
        return []
    shared = config.count("num_kv_shared_layers", default=0, least=0)
    full_heads = config.count("num_global_key_value_heads", default=config.kv_heads)
    full_size = config.count("global_head_dim", default=config.head_size)
    return [
        layers.window(i, _sliding(config), config.kv_heads, config.head_size)
        if kind == "sliding_attention"
        else layers.full(i, full_heads, full_size)
        for i, kind in enumerate(kinds[: max(0, number - shared)])
    ]


def _llama4(config: Config) -> list[Layer]:
    number, heads, size = config.num_layers, config.kv_heads, config.head_size
    rope = config.fields.get("no_rope_layers") or None
    if rope is None:
        interval = config.count("no_rope_layer_interval", default=4)
        rope = [int((i + 1) % interval != 0) for i in range(number)]
    else:
        rope = config.entries("no_rope_layers", number, (0, 1)) or [0] * number
    tokens = config.count("attention_chunk_size") if config.has("attention_chunk_size") else None
    return [
        layers.chunked(i, tokens, heads, size)
        if has_rope and tokens is not None
        else layers.full(i, heads, size)
        for i, has_rope in enumerate(rope)
    ]


def _mimo_v2(config: Config) -> list[Layer]:
    number, size = config.num_layers, config.head_size
    pattern = config.entries("hybrid_layer_pattern", number, (0, 1)) or []
    value = config.count("v_head_dim", default=size)
    window_size = config.count("swa_head_dim", default=size)
    window_value = config.count("swa_v_head_dim", default=window_size)
    heads = config.count("swa_num_key_value_heads", default=config.kv_heads)
    return [
        layers.window(i, _sliding(config), heads, window_size, window_value)
        if slides
        else layers.full(i, config.kv_heads, size, value)
        for i, slides in enumerate(pattern)
    ]


def latent_size(config: Config) -> int:
    """Elements of an MLA latent, its rotary part included."""
    return config.count("kv_lora_rank") + config.count("qk_rope_head_dim")


def mla(config: Config) -> list[Layer]:
    """DeepSeek V2 and V3, Kimi K2."""
    return [layers.latent(i, latent_size(config)) for i in range(config.num_layers)]


def sparse_mla(config: Config) -> list[Layer]:
    """DeepSeek V3.2, GLM-5."""
    size, index = latent_size(config), config.count("index_head_dim")
    kinds = config.entries("indexer_types", config.num_layers, ("full", "shared"))
    found = []
    for i in range(config.num_layers):
        if kinds is None or kinds[i] == "full":
            found.append(layers.indexer(i, index))
        found.append(layers.latent(i, size))
    return found


def deepseek_v4(config: Config) -> list[Layer]:
    """DeepSeek V4."""
    number = config.num_layers
    ratios = config.entries("compress_ratios", number, (0, 4, 128))
    if ratios is None:
        config.wrong("compress_ratios: is missing. DeepSeek V4 says there what each layer keeps.")
        return []
    if _sliding(config) != 128:
        config.wrong("sliding_window: only 128 is known for DeepSeek V4.")
    size, index = config.head_size, config.count("index_head_dim")
    return [
        part for i, ratio in enumerate(ratios) for part in layers.deepseek_v4(i, ratio, size, index)
    ]


def _kimi_linear(config: Config) -> list[Layer]:
    number, kind = config.num_layers, states.kimi_delta(config)
    given = config.mapping("linear_attn_config").get("full_attn_layers")
    if not isinstance(given, list) or not all(type(i) is int and 1 <= i <= number for i in given):
        config.wrong("linear_attn_config.full_attn_layers: is no list of layers, counted from 1.")
        return []
    size, places = latent_size(config), set(given)
    return [
        layers.latent(i, size) if i + 1 in places else layers.states(i, kind) for i in range(number)
    ]


def qwen_hybrid(config: Config) -> list[Layer]:
    """Qwen3-Next, Qwen3.5."""
    number, kind = config.num_layers, states.gated_delta_net(config)
    kinds = config.entries("layer_types", number, ("full_attention", "linear_attention"))
    if kinds is None:
        interval = config.count("full_attention_interval", default=4)
        kinds = [
            "linear_attention" if (i + 1) % interval else "full_attention" for i in range(number)
        ]
    return [
        layers.full(i, config.kv_heads, config.head_size)
        if of == "full_attention"
        else layers.states(i, kind)
        for i, of in enumerate(kinds)
    ]


_LETTERS = {"M": "mamba", "*": "attention", "-": "mlp", "E": "moe"}


def nemotron_h(config: Config) -> list[Layer]:
    """Nemotron-H, Nemotron 3."""
    kind = states.mamba2_nemotron(config)
    pattern, kinds = config.text("hybrid_override_pattern"), config.fields.get("layers_block_type")
    if pattern is not None:
        odd = sorted(set(pattern) - set(_LETTERS))
        if odd:
            config.wrong(f"hybrid_override_pattern: {odd[0]!r} is none of M, *, -, E. {BY_HAND}")
        kinds = [_LETTERS.get(letter, "mlp") for letter in pattern]
    elif isinstance(kinds, list):
        known = ("mamba", "attention", "mlp", "moe", "linear_attention", "full_attention")
        kinds = config.entries("layers_block_type", len(kinds), known) or []
    else:
        config.wrong("hybrid_override_pattern: is missing, and so is layers_block_type.")
        return []
    return [
        layers.states(i, kind)
        if of == "mamba"
        else layers.full(i, config.kv_heads, config.head_size)
        for i, of in enumerate(kinds)
        if of in ("mamba", "attention")
    ]


def _granite_hybrid(config: Config) -> list[Layer]:
    number, kind = config.num_layers, states.mamba2(config)
    kinds = config.entries("layer_types", number, ("mamba", "attention"))
    if kinds is None:
        places = config.fields.get("attn_layer_indices")
        if not isinstance(places, list):
            config.wrong("layer_types: is missing, and so is attn_layer_indices.")
            return []
        kinds = ["attention" if i in places else "mamba" for i in range(number)]
    return [
        layers.full(i, config.kv_heads, config.head_size)
        if of == "attention"
        else layers.states(i, kind)
        for i, of in enumerate(kinds)
    ]


def _falcon_h1(config: Config) -> list[Layer]:
    kind = states.mamba2(config)
    return [
        part
        for i in range(config.num_layers)
        for part in (layers.full(i, config.kv_heads, config.head_size), layers.states(i, kind))
    ]


def _jamba(config: Config) -> list[Layer]:
    kind = states.mamba1(config)
    period, offset = config.count("attn_layer_period"), config.count("attn_layer_offset", least=0)
    return [
        layers.full(i, config.kv_heads, config.head_size)
        if i % period == offset
        else layers.states(i, kind)
        for i in range(config.num_layers)
    ]


def _lfm2(config: Config) -> list[Layer]:
    number, kind = config.num_layers, states.short_convolution(config)
    kinds = config.entries("layer_types", number, ("full_attention", "conv"))
    if kinds is None:
        config.wrong("layer_types: is missing. LFM2 says there which layers attend.")
        return []
    return [
        layers.full(i, config.kv_heads, config.head_size)
        if of == "full_attention"
        else layers.states(i, kind)
        for i, of in enumerate(kinds)
    ]


def _lightning(config: Config) -> list[Layer]:
    raise KvsimError(
        f"{config.where}: architectures: '{config.architecture}' has lightning attention, which "
        f"vLLM 0.33 does not serve. {BY_HAND}"
    )


def _encoder_decoder(config: Config) -> list[Layer]:
    raise KvsimError(
        f"{config.where}: architectures: '{config.architecture}' is an encoder and a decoder: its "
        f"cross attention holds blocks for the encoder's tokens. Only decoders are simulated."
    )


FAMILIES: dict[str, Family] = {
    **dict.fromkeys(
        (
            "LlamaForCausalLM",
            "MistralForCausalLM",
            "MixtralForCausalLM",
            "Phi3ForCausalLM",
            "Olmo3ForCausalLM",
        ),
        _plain,
    ),
    **dict.fromkeys(
        (
            "MiniMaxM2ForCausalLM",
            "Glm4ForCausalLM",
            "Glm4MoeForCausalLM",
            "GraniteForCausalLM",
            "GraniteMoeForCausalLM",
            "Olmo2ForCausalLM",
        ),
        _full_only,
    ),
    **dict.fromkeys(
        (
            "Qwen2ForCausalLM",
            "Qwen2MoeForCausalLM",
            "Qwen3ForCausalLM",
            "Qwen3MoeForCausalLM",
        ),
        _qwen,
    ),
    "Gemma2ForCausalLM": _gemma2,
    "Gemma3ForCausalLM": _gemma3,
    "Gemma4ForCausalLM": _gemma4,
    "GptOssForCausalLM": _gpt_oss,
    "Llama4ForCausalLM": _llama4,
    "MiMoV2FlashForCausalLM": _mimo_v2,
    "DeepseekV2ForCausalLM": mla,
    "DeepseekV3ForCausalLM": mla,
    "DeepseekV32ForCausalLM": sparse_mla,
    "GlmMoeDsaForCausalLM": sparse_mla,
    "DeepseekV4ForCausalLM": deepseek_v4,
    "KimiLinearForCausalLM": _kimi_linear,
    "Qwen3NextForCausalLM": qwen_hybrid,
    "Qwen3_5ForCausalLM": qwen_hybrid,
    "Qwen3_5MoeForCausalLM": qwen_hybrid,
    "NemotronHForCausalLM": nemotron_h,
    "GraniteMoeHybridForCausalLM": _granite_hybrid,
    "BambaForCausalLM": _granite_hybrid,
    "FalconH1ForCausalLM": _falcon_h1,
    "JambaForCausalLM": _jamba,
    "Lfm2ForCausalLM": _lfm2,
    "Lfm2MoeForCausalLM": _lfm2,
    **dict.fromkeys(
        (
            "MiniMaxText01ForCausalLM",
            "MiniMaxM1ForCausalLM",
        ),
        _lightning,
    ),
    **dict.fromkeys(
        (
            "WhisperForConditionalGeneration",
            "T5ForConditionalGeneration",
            "BartForConditionalGeneration",
        ),
        _encoder_decoder,
    ),
}
"""Architecture to how its layers are listed."""

TEXT_PARTS = {
    "llama": "LlamaForCausalLM",
    "mistral": "MistralForCausalLM",
    "gemma3_text": "Gemma3ForCausalLM",
    "gemma4_text": "Gemma4ForCausalLM",
    "llama4_text": "Llama4ForCausalLM",
    "qwen2": "Qwen2ForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
    "qwen3_vl_text": "Qwen3ForCausalLM",
    "qwen3_vl_moe_text": "Qwen3MoeForCausalLM",
    "qwen3_moe": "Qwen3MoeForCausalLM",
    "qwen3_5_text": "Qwen3_5ForCausalLM",
    "qwen3_5_moe_text": "Qwen3_5MoeForCausalLM",
    "glm4_moe": "Glm4MoeForCausalLM",
    "glm4v_moe_text": "Glm4MoeForCausalLM",
    "deepseek_v3": "DeepseekV3ForCausalLM",
    "kimi_k2": "DeepseekV3ForCausalLM",
    "kimi_linear": "KimiLinearForCausalLM",
}
"""``model_type`` of a multimodal model's text part to its architecture."""
