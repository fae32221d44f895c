"""Decoders compute what the models of transformers compute with the same weights."""

from importlib import import_module
from importlib.util import find_spec

import pytest
import torch
from torch import Tensor, nn

from simulator.model.libraries import define_missing_operators
from simulator.model.workloads.language_models import read
from simulator.model.workloads.networks.decoders import Decoder

if find_spec("transformers") is None:
    pytest.skip("transformers is not installed", allow_module_level=True)
define_missing_operators()
transformers = import_module("transformers")

WIDTH, HEADS, GROUPS, HIDDEN, TOKENS, LENGTH = 32, 4, 2, 48, 50, 10
HEAD = WIDTH // HEADS
SIZES = f"layers=2,d_model={WIDTH},heads={HEADS},ffn={HIDDEN},vocab={TOKENS}"


def by_halves(weight: Tensor) -> Tensor:
    """Rows of a projection for rotary positions whose pairs are an element of the first half of a head and one of the second."""
    return weight.unflatten(0, (-1, HEAD // 2, 2)).transpose(1, 2).flatten(0, 2)


def llama_like(name: str, spec: str, **sizes: int | bool) -> tuple[Decoder, nn.Module]:
    config = getattr(transformers, f"{name}Config")(
        hidden_size=WIDTH, num_attention_heads=HEADS, num_key_value_heads=GROUPS, intermediate_size=HIDDEN, num_hidden_layers=2,
        head_dim=HEAD, vocab_size=TOKENS, rms_norm_eps=1e-5, tie_word_embeddings=False,
        rope_parameters={"rope_type": "default", "rope_theta": 1e4}, **sizes,
    )  # fmt: skip
    own, other = Decoder(read(spec), LENGTH).double(), getattr(transformers, f"{name}ForCausalLM")(config).double()
    if sizes:
        other.set_experts_implementation("eager")  # their products of groups take no float64
    pairs = [(other.model.embed_tokens, own.tokens), (other.model.norm, own.norm), (other.lm_head, own.head)]
    for theirs, ours in zip(other.model.layers, own.blocks, strict=True):
        pairs += [(theirs.self_attn.v_proj, ours.attention.value), (theirs.self_attn.o_proj, ours.attention.output)]
        if sizes:
            pairs += [(theirs.mlp.gate, ours.feed_forward.router)]
            theirs.mlp.experts.gate_up_proj.copy_(ours.feed_forward.gate_up)
            theirs.mlp.experts.down_proj.copy_(ours.feed_forward.down)
        else:
            pairs += [(theirs.mlp.gate_proj, ours.feed_forward.gate), (theirs.mlp.up_proj, ours.feed_forward.up)]
            pairs += [(theirs.mlp.down_proj, ours.feed_forward.down)]
        for theirs_of, ours_of in ((theirs.self_attn.q_proj, ours.attention.query), (theirs.self_attn.k_proj, ours.attention.key)):
            theirs_of.weight.copy_(by_halves(ours_of.weight))
    for theirs, ours in pairs:
        theirs.weight.copy_(ours.weight)
    return own, other


def deepseek() -> tuple[Decoder, nn.Module]:
    """Multi-head latent attention. Its experts' weights are not normalized, so that layers are dense here."""
    config = transformers.DeepseekV2Config(
        hidden_size=WIDTH, num_attention_heads=HEADS, num_key_value_heads=HEADS, intermediate_size=HIDDEN, num_hidden_layers=2,
        vocab_size=TOKENS, rms_norm_eps=1e-5, tie_word_embeddings=False, first_k_dense_replace=2, q_lora_rank=20, kv_lora_rank=12,
        qk_rope_head_dim=4, qk_nope_head_dim=HEAD, v_head_dim=HEAD, rope_parameters={"rope_type": "default", "rope_theta": 1e4},
    )  # fmt: skip
    spec = f"lm:form=llama,{SIZES},head_dim={HEAD},q_lora=20,kv_lora=12,rope_dim=4"
    own, other = Decoder(read(spec), LENGTH).double(), transformers.DeepseekV2ForCausalLM(config).double()
    pairs = [(other.model.embed_tokens, own.tokens), (other.model.norm, own.norm), (other.lm_head, own.head)]
    for theirs, ours in zip(other.model.layers, own.blocks, strict=True):
        attention, of_ours = theirs.self_attn, ours.attention
        pairs += [(attention.q_a_proj, of_ours.query_down), (attention.q_b_proj, of_ours.query), (attention.o_proj, of_ours.output)]
        pairs += [(attention.kv_a_proj_with_mqa, of_ours.down), (attention.kv_b_proj, of_ours.key_value)]
        for norm in (attention.q_a_layernorm, attention.kv_a_layernorm):
            norm.variance_epsilon = 1e-5
        pairs += [(theirs.mlp.gate_proj, ours.feed_forward.gate), (theirs.mlp.up_proj, ours.feed_forward.up)]
        pairs += [(theirs.mlp.down_proj, ours.feed_forward.down)]
    for theirs, ours in pairs:
        theirs.weight.copy_(ours.weight)
    return own, other


def gpt2() -> tuple[Decoder, nn.Module]:
    config = transformers.GPT2Config(
        n_embd=WIDTH, n_head=HEADS, n_layer=2, n_inner=HIDDEN, vocab_size=TOKENS, n_positions=LENGTH, activation_function="gelu"
    )
    own, other = Decoder(read(f"lm:form=gpt,{SIZES}"), LENGTH).double(), transformers.GPT2LMHeadModel(config).double()
    other.transformer.wte.weight.copy_(own.tokens.weight)
    other.transformer.wpe.weight.copy_(own.positions.weight)
    for theirs, ours in zip(other.transformer.h, own.blocks, strict=True):
        for conv, linear in (
            (theirs.attn.c_attn, ours.attention.project), (theirs.attn.c_proj, ours.attention.output),
            (theirs.mlp.c_fc, ours.feed_forward.up), (theirs.mlp.c_proj, ours.feed_forward.down),
        ):  # fmt: skip
            linear.bias.normal_()
            conv.weight.copy_(linear.weight.T)
            conv.bias.copy_(linear.bias)
    return own, other


def mpt() -> tuple[Decoder, nn.Module]:
    config = transformers.MptConfig(
        d_model=WIDTH, n_heads=HEADS, n_layers=2, expansion_ratio=4, max_seq_len=LENGTH, vocab_size=TOKENS, attn_config={"alibi": True}
    )
    spec = f"lm:form=gpt,layers=2,d_model={WIDTH},heads={HEADS},vocab={TOKENS},positions=alibi,biases=off,norm=low"
    own, other = Decoder(read(spec), LENGTH).double(), transformers.MptForCausalLM(config).double()
    other.transformer.wte.weight.copy_(own.tokens.weight)
    for theirs, ours in zip(other.transformer.blocks, own.blocks, strict=True):
        theirs.attn.Wqkv.weight.copy_(ours.attention.project.weight)
        theirs.attn.out_proj.weight.copy_(ours.attention.output.weight)
        theirs.ffn.up_proj.weight.copy_(ours.feed_forward.up.weight)
        theirs.ffn.down_proj.weight.copy_(ours.feed_forward.down.weight)
    return own, other


LLAMA = f"lm:form=llama,kv_heads={GROUPS},{SIZES}"
MIXTURE = f"{LLAMA},experts=4,active=2,expert_ffn={HIDDEN}"
QWEN3_MOE = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": HIDDEN, "norm_topk_prob": True}
BOTH = {
    "llama": lambda: llama_like("Llama", LLAMA),
    "qwen3": lambda: llama_like("Qwen3", f"{LLAMA},qk_norm=on"),
    "mixtral": lambda: llama_like("Mixtral", MIXTURE, num_local_experts=4, num_experts_per_tok=2),
    "qwen3_moe": lambda: llama_like("Qwen3Moe", f"{MIXTURE},qk_norm=on", **QWEN3_MOE),
    "deepseek": deepseek,
    "gpt2": gpt2,
    "mpt": mpt,
}


@pytest.mark.parametrize("name", BOTH)
def test_logits_are_those_of_transformers(name):
    torch.manual_seed(0)
    with torch.no_grad():
        own, other = BOTH[name]()
        tokens = torch.randint(TOKENS, (3, LENGTH))
        expected = other.eval()(input_ids=tokens).logits
        assert expected.std() > 0.01
        torch.testing.assert_close(own(tokens), expected, rtol=1e-5, atol=1e-6)  # their tables of positions are in float32
