"""Decoders by form: `lm:form=llama,layers=32,...`, and names such as `llama3:8b` with their public configurations. Imports no torch."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from types import MappingProxyType
from typing import Any

from traces.errors import SchedcastError, UnknownNameError

#: How the names of forms begin.
PREFIX = "lm:"
#: Sequence length of a form, unless --seq gives another.
USUAL_LENGTH = 2048
EXAMPLE = "lm:form=llama,layers=32,d_model=4096,heads=32,kv_heads=8,ffn=14336,vocab=128256"

GPT, LLAMA = "gpt", "llama"
LEARNED, ROTARY, ALIBI = "learned", "rotary", "alibi"
LAYER, LOW, RMS = "layer", "low", "rms"
PLAIN, FUSED = "plain", "fused"
SOFTMAX, SIGMOID = "softmax", "sigmoid"
_CHOICES = {
    "form": (GPT, LLAMA), "positions": (LEARNED, ROTARY, ALIBI), "norm": (LAYER, LOW, RMS), "loss": (PLAIN, FUSED),
    "router": (SOFTMAX, SIGMOID),
}  # fmt: skip
#: Published models have less: it keeps a mistyped number from running for hours.
_MOST = {"layers": 1000, "vocab": 10_000_000}
_MOST_WIDE = 1_000_000
#: Rows of what PyTorch's product of groups multiplies have a multiple of 16 bytes, in 16 bits as well.
_GROUPED = 8


@dataclass(frozen=True, slots=True)
class LanguageModel:
    """A decoder that predicts the next token. The names of the fields are those of the options of `lm:`.

    `form`: gpt (two linear layers with GELU; queries, keys and values by one product) or llama (SwiGLU; three products). `ffn`: width of
    the hidden layer. `kv_heads`: heads of keys and values, each shared by as many heads of queries. `tied`: the embedding of tokens also
    maps the last output to logits. `norm`: layer, low (layer norm that autocast leaves in the lower precision, as MPT's) or rms. `qk_norm`:
    RMS norm of queries and keys, head by head. `context`: rows of the table of learned positions; 0 for as many as the sequence is long.
    `fused`: one product for queries, keys and values, and one for SwiGLU's gate and what it gates, as Megatron-LM has them. `loss`: plain
    (F.cross_entropy of float32 logits) or fused (one kernel, which makes no copy of the logits, as FlashAttention's and Liger's).
    `head_dim`: elements of a head; 0: those of d_model over all heads.

    `kv_lora`: width of what keys and values of all heads are made of (multi-head latent attention: DeepSeek-AI 2024, DeepSeek-V2); 0: none.
    `q_lora`: that of queries; 0: they are made of the layer's input. `rope_dim`: elements of a head that turn with positions, in addition
    to head_dim others that do not; those of keys are the same for all heads.

    `experts`: of a layer, in the place of its feed-forward network; 0: none. `active`: experts of a token. `expert_ffn`: width of the
    hidden layer of one. `shared_ffn`: that of an expert that all tokens pass as well; 0: none. `dense_layers`: the first ones, which have
    no experts. `router`: what makes scores of its logits, of which the largest count: softmax or sigmoid. Experts are SwiGLU, not biased.
    """

    form: str
    layers: int
    d_model: int
    heads: int
    kv_heads: int
    ffn: int
    vocab: int
    tied: bool
    positions: str
    biases: bool
    norm: str
    qk_norm: bool = False
    context: int = 0
    fused: bool = False
    loss: str = PLAIN
    head_dim: int = 0
    kv_lora: int = 0
    q_lora: int = 0
    rope_dim: int = 0
    experts: int = 0
    active: int = 0
    expert_ffn: int = 0
    shared_ffn: int = 0
    dense_layers: int = 0
    router: str = SOFTMAX

    def __post_init__(self):
        """Raise SchedcastError for sizes that do not divide each other, and for experts that lack something."""
        if (not self.head_dim and self.d_model % self.heads) or self.heads % self.kv_heads:
            raise SchedcastError(
                f"{PREFIX} has d_model={self.d_model}, heads={self.heads} and kv_heads={self.kv_heads}; expected heads that divide d_model"
                " and kv_heads that divide heads; change one of them"
            )
        latent = self.kv_lora and self.rope_dim and self.kv_heads == self.heads and self.positions == ROTARY
        if (self.kv_lora or self.q_lora or self.rope_dim) and not latent:
            raise SchedcastError(
                f"{PREFIX} has kv_lora={self.kv_lora}, q_lora={self.q_lora}, rope_dim={self.rope_dim}, kv_heads={self.kv_heads} and"
                f" positions={self.positions}; expected kv_lora and rope_dim together, with kv_heads={self.heads} and positions=rotary;"
                " change one of them"
            )
        if self.positions == ROTARY and self.turned % 2:
            raise SchedcastError(
                f"{PREFIX} has {self.turned} elements per head; expected an even number for positions=rotary; change heads"
            )
        if self.experts or self.active or self.expert_ffn or self.shared_ffn or self.dense_layers:
            self._check_experts()

    def _check_experts(self) -> None:
        if not (self.form == LLAMA and 0 < self.active <= self.experts and self.expert_ffn and self.dense_layers <= self.layers):
            raise SchedcastError(
                f"{PREFIX} has form={self.form}, layers={self.layers}, experts={self.experts}, active={self.active},"
                f" expert_ffn={self.expert_ffn} and dense_layers={self.dense_layers}; expected form=llama with experts, expert_ffn, no more"
                " active than experts, and no more dense_layers than layers; change one of them"
            )
        if self.d_model % _GROUPED or self.expert_ffn % _GROUPED:
            raise SchedcastError(
                f"{PREFIX} has d_model={self.d_model} and expert_ffn={self.expert_ffn}; expected multiples of {_GROUPED}, as products of"
                " experts need them; change them"
            )

    @property
    def head(self) -> int:
        """Elements of a head."""
        return self.head_dim or self.d_model // self.heads

    @property
    def turned(self) -> int:
        """Elements of a head that turn with positions, if they are rotary."""
        return self.rope_dim or self.head

    @property
    def projected(self) -> tuple[int, int]:
        """Elements of all queries of a token, and of all its keys, which are as many as those of its values."""
        return self.heads * self.head, self.kv_heads * self.head

    def has_experts(self, layer: int) -> bool:
        """Whether a layer, counted from 0, has experts."""
        return self.experts > 0 and layer >= self.dense_layers

    def parameters(self, length: int) -> int:
        """The number of trainable scalars of a model for sequences of `length` tokens."""
        width, (queries, keys) = self.d_model, self.projected
        made = width * (queries + 2 * keys)
        if self.kv_lora:
            turning = queries + self.heads * self.rope_dim
            made = width * self.q_lora + self.q_lora + self.q_lora * turning if self.q_lora else width * turning
            made += width * (self.kv_lora + self.rope_dim) + self.kv_lora + self.kv_lora * 2 * queries
        hidden = (3 if self.form == LLAMA else 2) * width * self.ffn
        block = made + queries * width
        norm = width * (2 if self.biases and self.norm != RMS else 1)
        if self.biases:
            block += queries + 2 * keys + width
            hidden += self.ffn * (2 if self.form == LLAMA else 1) + width
        block += 2 * norm + (2 * self.head if self.qk_norm else 0)
        mixture = width * (self.experts + 3 * self.experts * self.expert_ffn + 3 * self.shared_ffn)
        mixtures = self.layers - self.dense_layers if self.experts else 0
        positions = (self.context or length) * width if self.positions == LEARNED else 0
        blocks = self.layers * block + (self.layers - mixtures) * hidden + mixtures * mixture
        return blocks + norm + positions + self.vocab * width * (1 if self.tied else 2)


_OPTIONS = {field.name: field.type for field in fields(LanguageModel)}


def read(spec: str) -> LanguageModel:
    """Return the model of `lm:OPTION=VALUE,...`. Raises SchedcastError for an unknown option or value, and if a size is missing."""
    given: dict[str, Any] = {}
    for part in spec.removeprefix(PREFIX).split(","):
        name, equals, text = (each.strip() for each in part.partition("="))
        if name not in _OPTIONS:
            raise UnknownNameError("option of lm:", name, tuple(_OPTIONS), f"give it as in {EXAMPLE}")
        if name in given:
            raise SchedcastError(f"{PREFIX} has {name} twice; expected it once")
        given[name] = _value(name, text if equals else "")
    missing = [name for name in ("form", "layers", "d_model", "heads") if name not in given]
    if missing:
        raise SchedcastError(f"{PREFIX} lacks {', '.join(missing)}; give it as in {EXAMPLE}")
    return LanguageModel(**_usual(given["form"], given["d_model"], given["heads"]) | given)


def _usual(form: str, width: int, heads: int) -> dict[str, Any]:
    """The options of a form that need not be given: those of GPT-2 and of Llama 2, whose hidden layer has a multiple of 256 elements."""
    if form == GPT:
        return {"kv_heads": heads, "ffn": 4 * width, "vocab": 50_257, "tied": True, "positions": LEARNED, "biases": True, "norm": LAYER}
    ffn = -(-8 * width // (3 * 256)) * 256
    return {"kv_heads": heads, "ffn": ffn, "vocab": 32_000, "tied": False, "positions": ROTARY, "biases": False, "norm": RMS}


def _value(name: str, text: str) -> Any:
    if _OPTIONS[name] is bool:
        if text not in ("on", "off"):
            raise SchedcastError(f"{PREFIX} has {name}={text[:40]!r}; expected on or off")
        return text == "on"
    if name in _CHOICES:
        if text not in _CHOICES[name]:
            raise UnknownNameError(f"{name} of lm:", text[:40], _CHOICES[name])
        return text
    most = _MOST.get(name, _MOST_WIDE)
    if not (text.isascii() and text.isdigit() and len(text) < 12 and 1 <= int(text) <= most):
        raise SchedcastError(f"{PREFIX} has {name}={text[:40]!r}; expected a number from 1 to {most:,}")
    return int(text)


# Names with public configurations.


@dataclass(frozen=True, slots=True)
class Named:
    """A model with a name. `length`: its usual sequence length. `about`: what it is, with the source of its sizes."""

    model: LanguageModel
    length: int
    about: str


_GPT2 = "Radford et al. 2019, Language models are unsupervised multitask learners; attention as one op, no dropout"
_LLAMA2 = "Touvron et al. 2023, Llama 2: Open foundation and fine-tuned chat models"
_LLAMA3 = "Grattafiori et al. 2024, The Llama 3 herd of models"
_MPT = "MosaicML 2023, llm-foundry, scripts/train/yamls/pretrain"
_LLAMA32 = "Meta 2024, Llama 3.2, published config.json"
_QWEN3 = "Yang et al. 2025, Qwen3 technical report"
_MISTRAL = "Jiang et al. 2023, Mistral 7B, and the published config.json of v0.3, whose attention has no window"
_TINYLLAMA = "Zhang et al. 2024, TinyLlama: An open-source small language model"
_SMOLLM2 = "Allal et al. 2025, SmolLM2, published config.json"
_DEEPSEEK = "and its published config.json; values are padded to the width of keys, and no bias or group chooses experts"
_MIXTRAL = "Jiang et al. 2024, Mixtral of experts, and its published config.json"


def _of(form: str, layers: int, width: int, heads: int, **others: Any) -> LanguageModel:
    return LanguageModel(form, layers, width, heads, **_usual(form, width, heads) | others)


def _named() -> Iterator[tuple[str, Named]]:
    for size, layers, width, heads in (("small", 12, 768, 12), ("medium", 24, 1024, 16), ("large", 36, 1280, 20), ("xl", 48, 1600, 25)):
        yield f"gpt2:{size}", Named(_of(GPT, layers, width, heads, context=1024), 1024, f"GPT-2 {size}: {_GPT2}")
    for size, layers, width, heads, others in (
        ("7b", 32, 4096, 32, {}), ("13b", 40, 5120, 40, {}), ("70b", 80, 8192, 64, {"kv_heads": 8, "ffn": 28_672}),
    ):  # fmt: skip
        yield f"llama2:{size}", Named(_of(LLAMA, layers, width, heads, **others), 4096, f"Llama 2 {size.upper()}: {_LLAMA2}")
    for size, layers, width, heads, ffn in (
        ("8b", 32, 4096, 32, 14_336),
        ("70b", 80, 8192, 64, 28_672),
        ("405b", 126, 16_384, 128, 53_248),
    ):
        model = _of(LLAMA, layers, width, heads, kv_heads=8, ffn=ffn, vocab=128_256)
        yield f"llama3:{size}", Named(model, 8192, f"Llama 3 {size.upper()}: {_LLAMA3}")
    for size, layers, width, heads, ffn in (("1b", 16, 2048, 32, 8192), ("3b", 28, 3072, 24, 8192)):
        model = _of(LLAMA, layers, width, heads, kv_heads=8, ffn=ffn, vocab=128_256, tied=True)
        yield f"llama3.2:{size}", Named(model, 8192, f"Llama 3.2 {size.upper()}: {_LLAMA32}")
    mistral = _of(LLAMA, 32, 4096, 32, kv_heads=8, ffn=14_336, vocab=32_768)
    yield "mistral:7b", Named(mistral, 8192, f"Mistral 7B: {_MISTRAL}")
    yield "tinyllama:1.1b", Named(_of(LLAMA, 22, 2048, 32, kv_heads=4, ffn=5632), 2048, f"TinyLlama 1.1B: {_TINYLLAMA}")
    for size, layers, width, heads, keys, ffn in (
        ("135m", 30, 576, 9, 3, 1536), ("360m", 32, 960, 15, 5, 2560), ("1.7b", 24, 2048, 32, 32, 8192),
    ):  # fmt: skip
        model = _of(LLAMA, layers, width, heads, kv_heads=keys, ffn=ffn, vocab=49_152, tied=True)
        yield f"smollm2:{size}", Named(model, 2048, f"SmolLM2-{size.upper()}: {_SMOLLM2}")
    for size, layers, width, heads in (
        ("125m", 12, 768, 12), ("350m", 24, 1024, 16), ("1b", 24, 2048, 16), ("3b", 32, 2560, 20), ("7b", 32, 4096, 32),
        ("13b", 40, 5120, 40), ("30b", 48, 7168, 56), ("70b", 80, 8192, 64),
    ):  # fmt: skip
        yield f"mpt:{size}", Named(_of(GPT, layers, width, heads, vocab=50_368, norm=LOW), 2048, f"MPT-{size}: {_MPT}")
    qwen3 = _of(LLAMA, 36, 4096, 32, kv_heads=8, ffn=12_288, vocab=151_936, qk_norm=True)
    yield "qwen3:8b", Named(qwen3, 4096, f"Qwen3-8B: {_QWEN3}")
    for size, layers, width, heads, ffn, tied in (
        ("0.6b", 28, 1024, 16, 3072, True), ("1.7b", 28, 2048, 16, 6144, True), ("4b", 36, 2560, 32, 9728, True),
        ("14b", 40, 5120, 40, 17_408, False), ("32b", 64, 5120, 64, 25_600, False),
    ):  # fmt: skip
        model = _of(LLAMA, layers, width, heads, kv_heads=8, ffn=ffn, vocab=151_936, qk_norm=True, head_dim=128, tied=tied)
        yield f"qwen3:{size}", Named(model, 4096, f"Qwen3-{size.upper()}: {_QWEN3}")
    for name, layers, width, heads, expert in (("30b-a3b", 48, 2048, 32, 768), ("235b-a22b", 94, 4096, 64, 1536)):
        mixture = {"experts": 128, "active": 8, "expert_ffn": expert, "head_dim": 128}
        model = _of(LLAMA, layers, width, heads, kv_heads=4, ffn=8 * expert, vocab=151_936, qk_norm=True, **mixture)
        yield f"qwen3:{name}", Named(model, 4096, f"Qwen3-{name.upper()}, 8 of 128 experts: {_QWEN3}")
    for name, layers, width, heads, ffn in (("8x7b", 32, 4096, 32, 14_336), ("8x22b", 56, 6144, 48, 16_384)):
        model = _of(LLAMA, layers, width, heads, kv_heads=8, ffn=ffn, experts=8, active=2, expert_ffn=ffn)
        yield f"mixtral:{name}", Named(model, 4096, f"Mixtral {name.replace('b', 'B')}, 2 of 8 experts: {_MIXTRAL}")
    for name, report, layers, width, heads, dense, ffn, vocab, mixture in (
        ("v2-lite", "DeepSeek-V2", 27, 2048, 16, 1, 10_944, 102_400, {"experts": 64, "active": 6, "expert_ffn": 1408, "shared_ffn": 2816}),
        ("v2", "DeepSeek-V2", 60, 5120, 128, 1, 12_288, 102_400, {"experts": 160, "active": 6, "expert_ffn": 1536, "shared_ffn": 3072}),
        ("v3", "DeepSeek-V3", 61, 7168, 128, 3, 18_432, 129_280, {"experts": 256, "active": 8, "expert_ffn": 2048, "shared_ffn": 2048}),
    ):  # fmt: skip
        latent = {"kv_lora": 512, "q_lora": 0 if name == "v2-lite" else 1536, "rope_dim": 64, "head_dim": 128, "dense_layers": dense}
        router = {"router": SIGMOID if name == "v3" else SOFTMAX}
        model = _of(LLAMA, layers, width, heads, ffn=ffn, vocab=vocab, **latent, **mixture, **router)
        yield f"deepseek:{name}", Named(model, 4096, f"DeepSeek-{name}: DeepSeek-AI 2024, {report} technical report, {_DEEPSEEK}")


#: Every named model.
NAMED: Mapping[str, Named] = MappingProxyType(dict(_named()))


#: Names of model cards, in lower case, and what they are called here: the same sizes. A model that follows instructions has those of its
#: base, which `listed_name` knows.
_CARDS: Mapping[str, str] = MappingProxyType({
    "gpt2:124m": "gpt2:small", "gpt2:355m": "gpt2:medium", "gpt2:774m": "gpt2:large", "gpt2:1.5b": "gpt2:xl",
    "openai-community/gpt2": "gpt2:small", "openai-community/gpt2-medium": "gpt2:medium",
    "openai-community/gpt2-large": "gpt2:large", "openai-community/gpt2-xl": "gpt2:xl",
    "meta-llama/llama-2-7b-hf": "llama2:7b", "meta-llama/llama-2-13b-hf": "llama2:13b", "meta-llama/llama-2-70b-hf": "llama2:70b",
    "meta-llama/meta-llama-3-8b": "llama3:8b", "meta-llama/meta-llama-3-70b": "llama3:70b",
    "meta-llama/llama-3.1-8b": "llama3:8b", "meta-llama/llama-3.1-70b": "llama3:70b", "meta-llama/llama-3.1-405b": "llama3:405b",
    "meta-llama/llama-3.3-70b": "llama3:70b", "llama3.1:8b": "llama3:8b", "llama3.1:70b": "llama3:70b", "llama3.1:405b": "llama3:405b",
    "llama3.3:70b": "llama3:70b", "meta-llama/llama-3.2-1b": "llama3.2:1b", "meta-llama/llama-3.2-3b": "llama3.2:3b",
    "mistralai/mistral-7b-v0.3": "mistral:7b", "tinyllama/tinyllama-1.1b-chat-v1.0": "tinyllama:1.1b",
    "mistralai/mixtral-8x7b-v0.1": "mixtral:8x7b", "mistralai/mixtral-8x22b-v0.1": "mixtral:8x22b",
    "deepseek-ai/deepseek-v2-lite": "deepseek:v2-lite", "deepseek-ai/deepseek-v2": "deepseek:v2", "deepseek-ai/deepseek-v3": "deepseek:v3",
    **{f"huggingfacetb/smollm2-{size}": f"smollm2:{size}" for size in ("135m", "360m", "1.7b")},
    **{f"qwen/qwen3-{size}": f"qwen3:{size}" for size in ("0.6b", "1.7b", "4b", "8b", "14b", "32b", "30b-a3b", "235b-a22b")},
})  # fmt: skip
#: How the names of models end that were trained further, with the sizes of their base.
_TRAINED_FURTHER = re.compile(r"-(instruct|base|it|chat)$")


def listed_name(name: str) -> str:
    """The name of a built-in language model for what users write of it, such as the name of its card; any other text as it is.

    >>> listed_name("meta-llama/Llama-3.1-8B-Instruct"), listed_name("GPT2:124M"), listed_name("resnet50")
    ('llama3:8b', 'gpt2:small', 'resnet50')
    """
    text = name.strip().lower()
    if text in NAMED:
        return text
    return _CARDS.get(text) or _CARDS.get(_TRAINED_FURTHER.sub("", text), name)
