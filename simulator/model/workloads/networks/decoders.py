"""Decoders that predict the next token, by their form (`simulator.model.workloads.language_models`): GPT-2, MPT, Llama, Qwen3 and others.

Attention is one op, F.scaled_dot_product_attention. Shapes: N sequences, T tokens, D model width, H heads of queries and G heads of keys
and values with E elements each, V tokens in the vocabulary. Of experts: X of them, A for each token, F elements in the hidden layer of one.
"""

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from simulator.model.ops.cross_entropy import fused_cross_entropy
from simulator.model.ops.products import grouped_product
from simulator.model.workloads.language_models import ALIBI, FUSED, GPT, LEARNED, LOW, RMS, ROTARY, SIGMOID, LanguageModel

_EPSILON = 1e-5
#: Longest wavelength of rotary positions over 2 pi. Llama 3 and Qwen3 have longer ones, which changes no time.
_ROTARY_BASE = 10_000.0
#: ALiBi's slopes run from 2^(-8/H) to 2^-8.
_ALIBI_MOST = 8.0


def _product_dtype(x: Tensor) -> torch.dtype:
    """The type in which products with x compute: autocast's lower precision, if it is on."""
    kind = x.device.type
    return torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else x.dtype


def _wide(x: Tensor) -> Tensor:
    """x in float32 at least."""
    return x.float() if x.dtype.itemsize < 4 else x


class LowPrecisionLayerNorm(nn.LayerNorm):
    """A layer norm that computes in autocast's lower precision, as MPT's does; autocast alone would compute it in float32 on a GPU."""

    def forward(self, x: Tensor) -> Tensor:
        """[..., D] to [..., D]."""
        kind, low = x.device.type, _product_dtype(x)
        if not torch.is_autocast_enabled(kind):
            return super().forward(x)
        weight, bias = (None if parameter is None else parameter.to(low) for parameter in (self.weight, self.bias))
        with torch.autocast(kind, enabled=False):
            return F.layer_norm(x.to(low), self.normalized_shape, weight, bias, self.eps)


def _norm(model: LanguageModel, width: int) -> nn.Module:
    if model.norm == RMS:
        return nn.RMSNorm(width, eps=_EPSILON)
    return (LowPrecisionLayerNorm if model.norm == LOW else nn.LayerNorm)(width, eps=_EPSILON, bias=model.biases)


def rotated(x: Tensor, turns: Tensor) -> Tensor:
    """Turn each pair of elements of x [N, T, H, E], taken as a complex number, by `turns` [T, E/2]; in float32 at least."""
    pairs = torch.view_as_complex(_wide(x).unflatten(-1, (-1, 2)))
    return torch.view_as_real(pairs * turns[:, None]).flatten(-2).to(x.dtype)


def turns_by(length: int, head: int) -> Tensor:
    """What `rotated` multiplies by: complex numbers [T, E/2] of length 1, at an angle of the position times a frequency."""
    frequencies = _ROTARY_BASE ** (-torch.arange(0, head, 2, dtype=torch.float32) / head)
    angles = torch.outer(torch.arange(length, dtype=torch.float32), frequencies)
    return torch.polar(torch.ones_like(angles), angles)


def alibi(length: int, heads: int) -> Tensor:
    """What ALiBi adds to the scores, [1, H, T, T]: a slope per head times the distance, and -inf for keys to come (Press et al. 2021)."""
    slopes = 2.0 ** (-_ALIBI_MOST * torch.arange(1, heads + 1) / heads)
    places = torch.arange(length)
    distance = places[None] - places[:, None]
    return (slopes[:, None, None] * distance).masked_fill(distance > 0, -math.inf)[None]


class Attention(nn.Module):
    """Causal attention in which groups of query heads share a head of keys and values."""

    def __init__(self, model: LanguageModel):
        super().__init__()
        self.head, self.sizes = model.head, [model.projected[0], model.projected[1], model.projected[1]]
        if model.form == GPT or model.fused:
            self.project = nn.Linear(model.d_model, sum(self.sizes), bias=model.biases)
        else:
            self.query, self.key, self.value = (nn.Linear(model.d_model, size, bias=model.biases) for size in self.sizes)
        self.output = nn.Linear(model.projected[0], model.d_model, bias=model.biases)
        self.norms = nn.ModuleList(nn.RMSNorm(model.head, eps=_EPSILON) for _ in range(2 if model.qk_norm else 0))
        self.rotary, self.alibi = model.positions == ROTARY, model.positions == ALIBI

    def forward(self, x: Tensor, table: Tensor | None) -> Tensor:
        """[N, T, D] to [N, T, D]; `table`: that of rotary positions or of ALiBi."""
        fused = hasattr(self, "project")
        projected = self.project(x).split(self.sizes, -1) if fused else (self.query(x), self.key(x), self.value(x))
        query, key, value = (part.unflatten(-1, (-1, self.head)) for part in projected)
        if self.norms:
            query, key = (norm(part) for norm, part in zip(self.norms, (query, key), strict=True))
        if self.rotary and table is not None:
            query, key = rotated(query, table), rotated(key, table)
        mask = table.to(query.dtype) if self.alibi and table is not None else None
        query, key, value = (part.transpose(1, 2) for part in (query, key, value))
        grouped = self.sizes[0] != self.sizes[1]
        out = F.scaled_dot_product_attention(query, key, value, attn_mask=mask, is_causal=mask is None, enable_gqa=grouped)
        return self.output(out.transpose(1, 2).flatten(2))


class LatentAttention(nn.Module):
    """Causal attention whose keys and values are made of a narrow tensor that all heads share, and queries of another (DeepSeek-V2).

    A part of each key turns with the position, one for all heads. Values are padded to the width of keys, since fused kernels have one.
    """

    def __init__(self, model: LanguageModel):
        super().__init__()
        self.head, self.turned, self.latent = model.head, model.rope_dim, model.kv_lora
        queries = model.heads * (model.head + model.rope_dim)
        if model.q_lora:
            self.query_down = nn.Linear(model.d_model, model.q_lora, bias=False)
            self.query_norm = nn.RMSNorm(model.q_lora, eps=_EPSILON)
        self.query = nn.Linear(model.q_lora or model.d_model, queries, bias=False)
        self.down = nn.Linear(model.d_model, model.kv_lora + model.rope_dim, bias=False)
        self.norm = nn.RMSNorm(model.kv_lora, eps=_EPSILON)
        self.key_value = nn.Linear(model.kv_lora, 2 * model.projected[0], bias=False)
        self.output = nn.Linear(model.projected[0], model.d_model, bias=False)

    def forward(self, x: Tensor, table: Tensor) -> Tensor:
        """[N, T, D] to [N, T, D]; `table`: that of rotary positions."""
        queries = self.query(self.query_norm(self.query_down(x)) if hasattr(self, "query_down") else x)
        still, turning = queries.unflatten(-1, (-1, self.head + self.turned)).split([self.head, self.turned], -1)
        query = torch.cat([still, rotated(turning, table)], -1)
        latent, shared = self.down(x).split([self.latent, self.turned], -1)
        key, value = self.key_value(self.norm(latent)).unflatten(-1, (-1, 2 * self.head)).chunk(2, -1)
        key = torch.cat([key, rotated(shared[:, :, None], table).expand(*key.shape[:-1], -1)], -1)
        query, key, value = (part.transpose(1, 2) for part in (query, key, F.pad(value, (0, self.turned))))
        out = F.scaled_dot_product_attention(query, key, value, is_causal=True)[..., : self.head]
        return self.output(out.transpose(1, 2).flatten(2))


class Gelu(nn.Module):
    """Two linear layers with GELU between them."""

    def __init__(self, width: int, hidden: int, biases: bool):
        super().__init__()
        self.up = nn.Linear(width, hidden, bias=biases)
        self.down = nn.Linear(hidden, width, bias=biases)

    def forward(self, x: Tensor) -> Tensor:
        """[..., D] to [..., D]."""
        return self.down(F.gelu(self.up(x)))


class SwiGlu(nn.Module):
    """Three linear layers: one whose SiLU is a gate for another, and one behind them. `fused`: the first two are one product."""

    def __init__(self, width: int, hidden: int, biases: bool, fused: bool):
        super().__init__()
        if fused:
            self.gate_up = nn.Linear(width, 2 * hidden, bias=biases)
        else:
            self.gate = nn.Linear(width, hidden, bias=biases)
            self.up = nn.Linear(width, hidden, bias=biases)
        self.down = nn.Linear(hidden, width, bias=biases)

    def forward(self, x: Tensor) -> Tensor:
        """[..., D] to [..., D]."""
        gate, up = self.gate_up(x).chunk(2, -1) if hasattr(self, "gate_up") else (self.gate(x), self.up(x))
        return self.down(F.silu(gate) * up)


class Experts(nn.Module):
    """A mixture of experts that drops no token: each passes the experts with the largest scores, and all of them a shared one, if any.

    Rows of tokens are sorted by expert and multiplied group by group, as Megatron-LM, torchtitan and transformers do (Gale et al. 2022,
    MegaBlocks), so that all shapes are known beforehand. No loss balances the experts.
    """

    def __init__(self, model: LanguageModel):
        super().__init__()
        self.active, self.sigmoid = model.active, model.router == SIGMOID
        self.router = nn.Linear(model.d_model, model.experts, bias=False)
        self.gate_up = nn.Parameter(torch.empty(model.experts, 2 * model.expert_ffn, model.d_model))
        self.down = nn.Parameter(torch.empty(model.experts, model.d_model, model.expert_ffn))
        if model.shared_ffn:
            self.shared = SwiGlu(model.d_model, model.shared_ffn, False, model.fused)
        for weight in (self.gate_up, self.down):
            nn.init.normal_(weight, 0.0, 0.02)

    def forward(self, x: Tensor) -> Tensor:
        """[N, T, D] to [N, T, D]."""
        tokens = x.flatten(0, 1)
        logits = _wide(self.router(tokens))
        scores, chosen = (logits.sigmoid() if self.sigmoid else logits.softmax(-1)).topk(self.active)
        scores = (scores / scores.sum(-1, keepdim=True)).flatten()
        experts, order = chosen.flatten().sort(stable=True)
        ends = torch.searchsorted(experts, torch.arange(len(self.down), device=x.device), right=True, out_int32=True)
        token = order // self.active
        low = _product_dtype(x)
        gate_up, down = (weight.to(low).transpose(1, 2) for weight in (self.gate_up, self.down))
        gate, up = grouped_product(tokens.to(low).index_select(0, token), gate_up, ends).chunk(2, -1)
        rows = grouped_product(F.silu(gate) * up, down, ends)
        rows = rows * scores.index_select(0, order).to(rows.dtype)[:, None]
        mixed = rows.new_zeros(tokens.shape).index_add_(0, token, rows).view(x.shape)
        return mixed + self.shared(x) if hasattr(self, "shared") else mixed


class Block(nn.Module):
    """Attention and a feed-forward network or experts, each after a norm and before a residual sum."""

    def __init__(self, model: LanguageModel, has_experts: bool):
        super().__init__()
        self.norm1 = _norm(model, model.d_model)
        self.attention = (LatentAttention if model.kv_lora else Attention)(model)
        self.norm2 = _norm(model, model.d_model)
        sizes = (model.d_model, model.ffn, model.biases)
        own = Experts(model) if has_experts else Gelu(*sizes) if model.form == GPT else SwiGlu(*sizes, model.fused)
        self.feed_forward = own

    def forward(self, x: Tensor, table: Tensor | None) -> Tensor:
        """[N, T, D] to [N, T, D]."""
        x = x + self.attention(self.norm1(x), table)
        return x + self.feed_forward(self.norm2(x))


class Decoder(nn.Module):
    """Embeddings of tokens and positions, blocks, a norm, and a linear layer to logits."""

    table: Tensor | None

    def __init__(self, model: LanguageModel, length: int):
        """`length`: the number of tokens T of its sequences."""
        super().__init__()
        self.tokens = nn.Embedding(model.vocab, model.d_model)
        if model.positions == LEARNED:
            self.positions = nn.Embedding(model.context or length, model.d_model)
        self.blocks = nn.ModuleList(Block(model, model.has_experts(layer)) for layer in range(model.layers))
        self.norm = _norm(model, model.d_model)
        if not model.tied:
            self.head = nn.Linear(model.d_model, model.vocab, bias=False)
        tables = {ROTARY: lambda: turns_by(length, model.turned), ALIBI: lambda: alibi(length, model.heads), LEARNED: lambda: None}
        self.register_buffer("table", tables[model.positions](), persistent=False)
        for module in self.modules():
            if isinstance(module, nn.Linear | nn.Embedding):
                nn.init.normal_(module.weight, 0.0, 0.02)

    def forward(self, tokens: Tensor) -> Tensor:
        """Tokens [N, T] to logits [N, T, V]."""
        x = self.tokens(tokens)
        if hasattr(self, "positions"):
            x = x + self.positions.weight[: tokens.shape[1]]
        for block in self.blocks:
            x = block(x, self.table)
        x = self.norm(x)
        return self.head(x) if hasattr(self, "head") else F.linear(x, self.tokens.weight)


def next_token_loss(logits: Tensor, labels: Tensor) -> Tensor:
    """Return the mean cross-entropy of logits [N, T, V] over the labels [N, T], in float32 at least."""
    return F.cross_entropy(_wide(logits).flatten(0, 1), labels.flatten())


def fused_loss(logits: Tensor, labels: Tensor) -> Tensor:
    """Return the same loss by a fused kernel, which reads the logits [N, T, V] as they are."""
    return fused_cross_entropy(logits.flatten(0, 1), labels.flatten())


def decoder(batch: int, length: int, model: LanguageModel) -> tuple:
    """Return the decoder, random tokens [batch, length], the next tokens [batch, length], and the loss."""
    text = torch.randint(model.vocab, (batch, length + 1))
    loss = fused_loss if model.loss == FUSED else next_token_loss
    return Decoder(model, length).train(), (text[:, :-1].contiguous(),), text[:, 1:].contiguous(), loss
