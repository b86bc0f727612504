"""Parameters of a model from its config, and the bytes of its weights.

Counted are the matrices: embedding and output head, attention or states, dense and expert MLPs.
Norms, biases and convolutions are left out; they are below a thousandth. What is checked against
published totals stands in the tests, with its error.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from kvsim.planning.config import Config
from kvsim.planning.families import architecture_of

MLA_FAMILIES = (
    "DeepseekV2ForCausalLM",
    "DeepseekV3ForCausalLM",
    "DeepseekV32ForCausalLM",
    "GlmMoeDsaForCausalLM",
)
PLAIN_FAMILIES = (
    "LlamaForCausalLM",
    "MistralForCausalLM",
    "MixtralForCausalLM",
    "Phi3ForCausalLM",
    "Olmo2ForCausalLM",
    "Olmo3ForCausalLM",
    "MiniMaxM2ForCausalLM",
    "Glm4ForCausalLM",
    "Glm4MoeForCausalLM",
    "GraniteForCausalLM",
    "GraniteMoeForCausalLM",
    "Qwen2ForCausalLM",
    "Qwen2MoeForCausalLM",
    "Qwen3ForCausalLM",
    "Qwen3MoeForCausalLM",
    "Gemma2ForCausalLM",
    "Gemma3ForCausalLM",
    "Gemma4ForCausalLM",
    "GptOssForCausalLM",
    "Llama4ForCausalLM",
    "MiMoV2FlashForCausalLM",
)
QWEN_HYBRIDS = ("Qwen3NextForCausalLM", "Qwen3_5ForCausalLM", "Qwen3_5MoeForCausalLM")
COUNTED = (
    *MLA_FAMILIES,
    *PLAIN_FAMILIES,
    *QWEN_HYBRIDS,
    "NemotronHForCausalLM",
    "GraniteMoeHybridForCausalLM",
    "JambaForCausalLM",
    "KimiLinearForCausalLM",
)
"""Architectures whose parameters are counted; of others they have to be given."""

_TWO_MATRICES = ("NemotronHForCausalLM",)  # squared ReLU has no gate
_TIED_UNLESS_SAID = ("Gemma2ForCausalLM", "Gemma3ForCausalLM", "Gemma4ForCausalLM")


@dataclass(frozen=True)
class Parameters:
    """How many parameters a model has, by what they do.

    Attributes:
        embedding: input embedding.
        head: output head; 0 where it is the embedding.
        attention: attention, states and their projections.
        dense: MLPs that every token passes, shared experts and routers included.
        experts: routed experts, all of them.
        num_experts: routed experts of a layer; 0 for a dense model.
        experts_per_token: routed experts a token passes.
    """

    embedding: int
    head: int
    attention: int
    dense: int
    experts: int
    num_experts: int
    experts_per_token: int

    @property
    def total(self) -> int:
        """All parameters."""
        return self.embedding + self.head + self.attention + self.dense + self.experts

    @property
    def active(self) -> float:
        """Those a token is multiplied with: the embedding is looked up, unless it is the head."""
        routed = self.experts * self.experts_per_token / self.num_experts if self.num_experts else 0
        return (self.head or self.embedding) + self.attention + self.dense + routed


@dataclass(frozen=True)
class Weights:
    """Bytes of a model's weights, whole.

    Attributes:
        total: as loaded, without what a kernel pads.
        experts: the part in routed experts.
        precision: arithmetic of the matrix products.
        reason: how they are stored.
    """

    total: float
    experts: float
    precision: str
    reason: str


def count_parameters(config: Config) -> Parameters | None:
    """The parameters of a model; None where its architecture is not in `COUNTED`.

    Raises:
        Problems: fields that are missing or wrong.
    """
    name = architecture_of(config)
    if name not in COUNTED:
        return None
    hidden, vocabulary = config.hidden_size, config.count("vocab_size")
    tied = config.flag("tie_word_embeddings", name in _TIED_UNLESS_SAID)
    kinds = _mixers(config)
    attention = sum(_mixer(config, kind) for kind in kinds)
    num = config.count("n_routed_experts", "num_experts", "num_local_experts", default=0, least=0)
    names = "num_experts_per_tok", "num_experts_per_token", "top_k_experts", "experts_per_token"
    per_token = config.count(*names, default=0, least=0)
    sparse = _sparse_layers(config) if num else [False] * config.num_layers
    matrices = 2 if name in _TWO_MATRICES else 3
    dense = experts = 0
    for kind in _mlps(config, sparse):
        if kind == "sparse":
            width = config.count("moe_intermediate_size", "intermediate_size")
            through = config.count("moe_latent_size", "routed_expert_hidden_size", default=hidden)
            experts += num * matrices * through * width
            dense += hidden * num + matrices * hidden * _shared_width(config, width)
            dense += 2 * hidden * through if through != hidden else 0
            if name == "Gemma4ForCausalLM":  # a dense MLP beside the experts
                dense += matrices * hidden * config.count("intermediate_size")
        elif kind == "dense":
            dense += matrices * hidden * _dense_width(config, num > 0)
    config.raise_problems()
    head = 0 if tied else hidden * vocabulary
    return Parameters(hidden * vocabulary, head, attention, dense, experts, num, per_token)


def _pattern(config: Config) -> list[str] | None:
    """What each layer of a Nemotron is."""
    pattern = config.text("hybrid_override_pattern")
    if pattern is not None:
        letters = {"M": "mamba", "*": "attention", "-": "mlp", "E": "moe"}
        return [letters.get(letter, "mlp") for letter in pattern]
    kinds = config.fields.get("layers_block_type")
    return [str(kind) for kind in kinds] if isinstance(kinds, list) else None


def _mixers(config: Config) -> list[str]:
    """What mixes tokens in each layer that does."""
    number = config.num_layers
    if architecture_of(config) == "NemotronHForCausalLM":
        return [kind for kind in _pattern(config) or [] if kind in ("mamba", "attention")]
    if architecture_of(config) == "JambaForCausalLM":
        period, offset = config.count("attn_layer_period"), config.fields.get("attn_layer_offset")
        return ["attention" if i % period == offset else "mamba1" for i in range(number)]
    if architecture_of(config) in MLA_FAMILIES:
        return ["mla"] * number
    if architecture_of(config) == "KimiLinearForCausalLM":
        full = config.mapping("linear_attn_config").get("full_attn_layers")
        places = set(full) if isinstance(full, list) else set()
        return ["mla" if i + 1 in places else "kda" for i in range(number)]
    kinds = config.fields.get("layer_types")
    if architecture_of(config) in QWEN_HYBRIDS and not isinstance(kinds, list):
        interval = config.count("full_attention_interval", default=4)
        kinds = ["linear_attention" if (i + 1) % interval else "" for i in range(number)]
    if architecture_of(config) == "MiMoV2FlashForCausalLM":
        pattern = config.entries("hybrid_layer_pattern", number, (0, 1)) or [0] * number
        return ["swa" if slides else "attention" for slides in pattern]
    named = {"linear_attention": "gdn", "mamba": "mamba"}
    if architecture_of(config) == "Gemma4ForCausalLM":
        named["full_attention"] = "global"
    listed = kinds if isinstance(kinds, list) else [""] * number
    return [named.get(str(kind), "attention") for kind in listed[:number]]


def _mixer(config: Config, kind: str) -> int:
    hidden, heads = config.hidden_size, config.query_heads
    if kind == "mla":
        return _mla(config)
    if kind == "gdn":
        keys = config.count("linear_num_key_heads") * config.count("linear_key_head_dim")
        value_heads = config.count("linear_num_value_heads")
        values = value_heads * config.count("linear_value_head_dim")
        return hidden * (2 * keys + 2 * values + 2 * value_heads) + values * hidden
    if kind == "kda":
        given = config.mapping("linear_attn_config")
        num, size = int(given.get("num_heads") or 0), int(given.get("head_dim") or 0)
        # Queries, keys, values and output; decay and gate of low rank; a beta a head.
        return 4 * hidden * num * size + 2 * (hidden * size + size * num * size) + hidden * num
    if kind == "mamba1":
        inner = int(config.number("mamba_expand", 2) * hidden)
        rank, state = config.count("mamba_dt_rank", default=1), config.count("mamba_d_state")
        return hidden * 2 * inner + inner * (2 * rank + 2 * state) + inner * hidden
    if kind == "mamba":
        num = config.count("mamba_num_heads", "mamba_n_heads")
        inner = num * config.count("mamba_head_dim", "mamba_d_head")
        groups = config.count("n_groups", "mamba_n_groups", default=1)
        state = config.count("ssm_state_size", "mamba_d_state")
        return hidden * (2 * inner + 2 * groups * state + num) + inner * hidden
    size, kv_heads = config.head_size, config.kv_heads
    value = config.count("v_head_dim", default=size)
    if kind == "swa":
        heads = config.count("swa_num_attention_heads", default=heads)
        kv_heads = config.count("swa_num_key_value_heads", default=kv_heads)
        size = config.count("swa_head_dim", default=size)
        value = config.count("swa_v_head_dim", default=value)
    if kind == "global":  # of Gemma 4: values are the keys
        kv_heads = config.count("num_global_key_value_heads", default=kv_heads)
        size = config.count("global_head_dim", default=size)
        value = size
        shared = size if config.flag("attention_k_eq_v") else 0
        return hidden * (heads * size + kv_heads * (2 * size - shared)) + heads * size * hidden
    gated = 2 if architecture_of(config) in QWEN_HYBRIDS else 1  # a gate as wide as the queries
    return hidden * (gated * heads * size + kv_heads * (size + value)) + heads * value * hidden


def _mla(config: Config) -> int:
    hidden, heads = config.hidden_size, config.query_heads
    rope, nope = config.count("qk_rope_head_dim"), config.count("qk_nope_head_dim")
    value, latent = config.count("v_head_dim"), config.count("kv_lora_rank")
    rank = config.count("q_lora_rank") if config.has("q_lora_rank") else None
    queries = heads * (nope + rope)
    total = hidden * queries if rank is None else hidden * rank + rank * queries
    total += hidden * (latent + rope) + latent * heads * (nope + value) + heads * value * hidden
    if config.has("index_head_dim") and rank is not None:
        num, size = config.count("index_n_heads"), config.count("index_head_dim")
        kinds = config.fields.get("indexer_types")
        share = kinds.count("full") / len(kinds) if isinstance(kinds, list) and kinds else 1.0
        total += round(share * (rank * num * size + hidden * size + hidden * num))
    return total


def _mlps(config: Config, sparse: list[bool]) -> list[str]:
    if architecture_of(config) == "NemotronHForCausalLM":
        kinds = {"mlp": "dense", "moe": "sparse"}
        return [kinds[kind] for kind in _pattern(config) or [] if kind in kinds]
    return ["sparse" if one else "dense" for one in sparse]


def _sparse_layers(config: Config) -> list[bool]:
    """Which layers have routed experts."""
    number = config.num_layers
    frequency = config.fields.get("moe_layer_freq")
    if isinstance(frequency, list):
        return [bool(one) for one in frequency[:number]]
    kinds = config.fields.get("mlp_layer_types")
    if isinstance(kinds, list):
        return [kind == "sparse" for kind in kinds[:number]]
    first = config.count("first_k_dense_replace", default=0, least=0)
    only = config.fields.get("mlp_only_layers")
    dense = set(only) if isinstance(only, list) else set()
    if config.has("expert_layer_period"):
        period = config.count("expert_layer_period")
        offset = config.count("expert_layer_offset", default=0, least=0)
        return [i % period == offset for i in range(number)]
    step = config.count("decoder_sparse_step", "interleave_moe_layer_step", default=1)
    return [i >= first and i not in dense and (i + 1) % step == 0 for i in range(number)]


def _shared_width(config: Config, width: int) -> int:
    """Width of the experts that every token passes."""
    shared = config.count("n_shared_experts", "num_shared_experts", default=0, least=0)
    if config.has("moe_shared_expert_intermediate_size"):
        return shared * config.count("moe_shared_expert_intermediate_size")
    if architecture_of(config) == "Llama4ForCausalLM":
        return config.count("intermediate_size")
    names = "shared_expert_intermediate_size", "shared_intermediate_size"
    given = config.count(*names, default=0, least=0)
    return given or shared * width


def _dense_width(config: Config, has_experts: bool) -> int:
    if architecture_of(config) == "Llama4ForCausalLM" and has_experts:
        return config.count("intermediate_size_mlp", "intermediate_size")
    return config.count("intermediate_size")


_FP8_SCALED = 1 + 4 / 128**2
"""Bytes of an FP8 weight with a 4-byte scale for a block of 128 x 128."""
_MXFP4 = 4.25 / 8
"""Bytes of an MXFP4 weight: 4 bits, and one 8-bit scale for 32 weights."""
_NVFP4 = 4.5 / 8
"""Bytes of an NVFP4 weight: 4 bits, and one 8-bit scale for 16 weights."""


def count_weights(config: Config, parameters: Parameters) -> Weights | None:
    """Bytes of the weights as the checkpoint stores them; None for a format that is not known."""
    given = config.quantization
    method = given.get("quant_method")
    kept = parameters.embedding + parameters.head
    inner, experts = parameters.attention + parameters.dense, parameters.experts
    if not given:
        total = 2.0 * parameters.total
        return Weights(total, 2.0 * experts, "bf16", "two bytes a parameter (config.json, dtype)")
    if method == "fp8":
        block = given.get("weight_block_size")
        each = _FP8_SCALED if isinstance(block, list) else 1.0
        reason = "FP8 but for embedding and output head (config.json, quantization_config)"
        return Weights(2.0 * kept + each * (inner + experts), each * experts, "fp8", reason)
    if method == "mxfp4":
        reason = "MXFP4 experts, the rest BF16 (config.json, quantization_config)"
        return Weights(2.0 * (kept + inner) + _MXFP4 * experts, _MXFP4 * experts, "bf16", reason)
    algorithm = str(given.get("quant_algo", "")).upper()
    if method == "modelopt" and algorithm in ("NVFP4", "FP8"):
        each = _NVFP4 if algorithm == "NVFP4" else 1.0
        reason = f"{algorithm} where not ignored (config.json, quantization_config)"
        precision = "fp4" if algorithm == "NVFP4" else "fp8"
        total = 2.0 * kept + _inner_bytes(given, each, parameters) + each * experts
        return Weights(total, each * experts, precision, reason)
    if method == "compressed-tensors":
        return _compressed(given, kept, parameters)
    bits = given.get("bits")
    if method in ("awq", "gptq") and isinstance(bits, int):
        each = (bits + 20 / given.get("group_size", 128)) / 8
        reason = f"{bits} bits with scales (config.json, quantization_config)"
        return Weights(2.0 * kept + each * (inner + experts), each * experts, "bf16", reason)
    return None


def _compressed(given: Mapping[str, Any], kept: int, parameters: Parameters) -> Weights | None:
    """Of a checkpoint in the format of compressed-tensors with one kind of weights."""
    groups = given.get("config_groups")
    kinds = list(groups.values()) if isinstance(groups, Mapping) else []
    weights = kinds[0].get("weights") if len(kinds) == 1 and isinstance(kinds[0], Mapping) else None
    if not isinstance(weights, Mapping) or weights.get("num_bits") not in (4, 8):
        return None
    bits, size = int(weights["num_bits"]), weights.get("group_size")
    scale_bits = 8 if weights.get("type") == "float" else 16
    each = (bits + (scale_bits / size if isinstance(size, int) and size > 0 else 0.0)) / 8
    experts = each * parameters.experts
    total = 2.0 * kept + _inner_bytes(given, each, parameters) + experts
    computes = "bf16"  # weights alone are packed
    if kinds[0].get("input_activations") is not None:
        computes = "fp4" if bits == 4 else "fp8"
    reason = f"{bits} bits with scales where not ignored (config.json, quantization_config)"
    return Weights(total, experts, computes, reason)


def _inner_bytes(given: Mapping[str, Any], each: float, parameters: Parameters) -> float:
    """Bytes of attention and dense MLPs, two a parameter where quantization passes them over."""
    ignored = given.get("ignore") or given.get("exclude_modules") or ()
    spared = " ".join(str(one) for one in ignored)
    attention = 2.0 if "self_attn*" in spared or "self_attn.*" in spared else each
    dense = 2.0 if "shared_experts" in spared else each
    return attention * parameters.attention + dense * parameters.dense
