"""State layers: the shapes and dtypes of convolution and recurrent states on one rank.

Formulas: vLLM 0.33.0, MambaStateShapeCalculator and MambaStateDtypeCalculator.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from kvsim.planning.config import Config
from kvsim.planning.settings import Settings

MAMBA1 = "mamba1"
MAMBA2 = "mamba2"
GDN = "gdn"
KDA = "kda"
SHORT_CONV = "short_conv"


@dataclass(frozen=True)
class StateKind:
    """The states of one layer, whole, before ranks divide them.

    Attributes:
        kind: ``MAMBA1``, ``MAMBA2``, ``GDN``, ``KDA`` or ``SHORT_CONV``.
        kernel: width of the convolution, tokens.
        channels: width of what is convolved: without ``grouped`` part.
        grouped: channels that groups carry (Mamba-2: 2 x state); 0 without groups.
        groups: of them.
        recurrent: shape of the recurrent state, its first dimension divided by ranks; empty
            without one.
        recurrent_dtype: where the family fixes it; None for that of the convolution.
    """

    kind: str
    kernel: int
    channels: int
    grouped: int = 0
    groups: int = 0
    recurrent: tuple[int, ...] = ()
    recurrent_dtype: str | None = None

    def shapes(self, tensor_parallel: int, draft_tokens: int) -> tuple[tuple[int, ...], ...]:
        """The states of a rank: convolution, then recurrent."""
        groups = self.groups
        if groups and groups % tensor_parallel:
            groups = tensor_parallel  # one for each rank, some of them copies
        channels = (self.channels + groups * self.grouped) // tensor_parallel
        drafts = 0 if self.kind in (MAMBA1, SHORT_CONV) else draft_tokens
        convolution = (self.kernel - 1 + drafts, channels)
        if not self.recurrent:
            return (convolution,)
        first, *rest = self.recurrent
        return convolution, (first // tensor_parallel, *rest)

    def dtypes(self, model_dtype: str, settings: Settings) -> tuple[str, ...]:
        """Dtypes of the same; a setting beats the family's, which beats the model's."""
        convolution = settings.mamba_cache_dtype
        if convolution == "auto":
            convolution = model_dtype
        if not self.recurrent:
            return (convolution,)
        recurrent = settings.mamba_ssm_cache_dtype
        if self.kind == KDA:
            recurrent = "float32"
        elif recurrent == "auto" or self.recurrent_dtype == "uint8":  # uint8: bytes, as given
            recurrent = self.recurrent_dtype or convolution
        return convolution, recurrent

    def checkpoints(self, settings: Settings) -> int:
        """Blocks for a state from inside a prefill, where the kernel can write it."""
        if self.kind in (MAMBA2, KDA):
            return 1
        exports = self.kind == GDN and settings.state_mode == "align" and _has_gdn_kernel(settings)
        return 1 if exports and (not settings.is_blackwell or self.recurrent[-1] == 128) else 0

    def alignment(self, settings: Settings) -> int:
        """Tokens that a state's block is a multiple of in mode align."""
        if self.kind == KDA:
            return 16
        return 64 if self.kind == GDN and self.checkpoints(settings) else 1


def _has_gdn_kernel(settings: Settings) -> bool:
    """The FlashInfer prefill kernel: Hopper and data-centre Blackwell."""
    return settings.capability[0] in (9, 10)


def mamba1(config: Config) -> StateKind:
    """Jamba."""
    inner = int(config.number("mamba_expand", 2) * config.hidden_size)
    state = config.count("mamba_d_state", default=16)
    kernel = config.count("mamba_d_conv", default=4)
    return StateKind(MAMBA1, kernel, inner, recurrent=(inner, state))


def mamba2_nemotron(config: Config) -> StateKind:
    """Nemotron-H and Nemotron 3."""
    heads, size = config.count("mamba_num_heads"), config.count("mamba_head_dim")
    state = config.count("ssm_state_size")
    dtype = config.text("mamba_ssm_cache_dtype") or "float32"
    return StateKind(
        MAMBA2,
        config.count("conv_kernel", default=4),
        heads * size,
        grouped=2 * state,
        groups=config.count("n_groups"),
        recurrent=(heads, size, state),
        recurrent_dtype=dtype,
    )


def mamba2(config: Config) -> StateKind:
    """Granite 4, Bamba and Falcon-H1."""
    heads, size = config.count("mamba_n_heads"), config.count("mamba_d_head")
    state = config.count("mamba_d_state")
    if config.has("mamba_d_ssm"):
        inner = config.count("mamba_d_ssm")
    else:
        inner = int(config.number("mamba_expand", 2) * config.hidden_size)
    if inner != heads * size:
        config.wrong(
            f"mamba_n_heads: {heads} heads of {size} are not the {inner} channels of mamba_expand "
            "and hidden_size, or of mamba_d_ssm. Correct one."
        )
    return StateKind(
        MAMBA2,
        config.count("mamba_d_conv", default=4),
        inner,
        grouped=2 * state,
        groups=config.count("mamba_n_groups", default=1),
        recurrent=(heads, size, state),
    )


def gated_delta_net(config: Config) -> StateKind:
    """Qwen3-Next and Qwen3.5."""
    key_heads, value_heads = (
        config.count("linear_num_key_heads"),
        config.count("linear_num_value_heads"),
    )
    key, value = config.count("linear_key_head_dim"), config.count("linear_value_head_dim")
    return StateKind(
        GDN,
        config.count("linear_conv_kernel_dim", default=4),
        2 * key_heads * key + value_heads * value,
        recurrent=(value_heads, value, key),
        recurrent_dtype=config.text("mamba_ssm_dtype"),
    )


def kimi_delta(config: Config) -> StateKind:
    """Kimi Linear and Kimi K3."""
    given: Mapping[str, object] = config.mapping("linear_attn_config")
    inner = Config({"architectures": ["linear_attn_config"], **given}, config.where)
    heads, size = inner.count("num_heads"), inner.count("head_dim")
    kernel = inner.count("short_conv_kernel_size", default=4)
    for problem in inner.problems:
        config.wrong(f"linear_attn_config.{problem}")
    return StateKind(KDA, kernel, 3 * heads * size, recurrent=(heads, size, size))


def short_convolution(config: Config) -> StateKind:
    """LFM2."""
    kernel = config.count("conv_L_cache", default=3)
    return StateKind(SHORT_CONV, kernel, config.count("conv_dim", default=config.hidden_size))
