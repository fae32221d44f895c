"""Decoders by form and by name: published sizes, what they compute, one op for attention, and plain PyTorch's numbers on the CPU."""

import math
from collections import Counter
from dataclasses import replace
from itertools import product

import pytest
import torch
from torch._subclasses import FakeTensorMode
from torch.nn import functional as F

from simulator.engine.costs.efficiencies import extents as extents_of
from simulator.engine.costs.products import Attention as AttentionWork
from simulator.engine.costs.products import Product
from simulator.model.job import Job
from simulator.model.workloads import registry as workloads
from simulator.model.workloads.language_models import _CARDS, NAMED, LanguageModel, read
from simulator.model.workloads.networks.decoders import Attention, Decoder, Experts, alibi, rotated, turns_by
from simulator.plan.bodies.op_class import GROUPED_PRODUCT
from tests.support.refusals import refuses
from tests.support.same_numbers import assert_trains_alike
from traces.errors import Code

#: What the papers, the models' pages or (MPT, at 2048 tokens) the benchmark tables of llm-foundry print.
PUBLISHED = {
    "gpt2:small": 124_439_808, "gpt2:medium": 354_823_168, "gpt2:large": 774_030_080, "gpt2:xl": 1_557_611_200,
    "llama2:7b": 6_738_415_616, "llama2:13b": 13_015_864_320, "llama2:70b": 68_976_648_192,
    "llama3.2:1b": 1_235_814_400, "llama3.2:3b": 3_212_749_824, "mistral:7b": 7_248_023_552, "tinyllama:1.1b": 1_100_048_384,
    "smollm2:135m": 134_515_008, "smollm2:360m": 361_821_120, "smollm2:1.7b": 1_711_376_384,
    "qwen3:0.6b": 596_049_920, "qwen3:1.7b": 1_720_574_976, "qwen3:4b": 4_022_468_096, "qwen3:14b": 14_768_307_200,
    "qwen3:32b": 32_762_123_264,
    "llama3:8b": 8_030_261_248, "llama3:70b": 70_553_706_496, "llama3:405b": 405_853_388_800,
    "mpt:125m": 125_311_488, "mpt:350m": 355_985_408, "mpt:1b": 1_315_950_592, "mpt:3b": 2_651_837_440, "mpt:7b": 6_658_859_008,
    "mpt:30b": 29_975_214_080, "mpt:70b": 64_862_437_376, "qwen3:8b": 8_190_735_360,
    "qwen3:30b-a3b": 30_532_122_624, "qwen3:235b-a22b": 235_093_634_560, "mixtral:8x7b": 46_702_792_704, "mixtral:8x22b": 140_620_634_112,
    "deepseek:v2-lite": 15_706_484_224, "deepseek:v2": 235_741_434_880, "deepseek:v3": 671_026_404_352,
}  # fmt: skip
LLAMA = "lm:form=llama,layers=2,d_model=64,heads=4,kv_heads=2,ffn=96,vocab=100"
GPT = "lm:form=gpt,layers=2,d_model=64,heads=4,ffn=96,vocab=100"
LATENT = f"{LLAMA.replace('kv_heads=2,', '')},head_dim=8,kv_lora=12,rope_dim=4"
EXPERTS = f"{LLAMA},experts=8,active=2,expert_ffn=32,shared_ffn=16,dense_layers=1"
FORMS = [LLAMA, f"{LLAMA},qk_norm=on,tied=on", f"{LLAMA},fused=on,loss=fused", f"{LLAMA},biases=on,norm=layer", GPT,
         f"{LATENT},q_lora=20", LATENT,
         EXPERTS, f"{LLAMA},experts=4,active=1,expert_ffn=32,router=sigmoid,head_dim=8",
         f"{GPT},kv_heads=1,positions=rotary,tied=off", f"{GPT},positions=alibi,norm=low", f"{GPT},biases=off,context=16"]  # fmt: skip
FORWARD = "aten._scaled_dot_product_flash_attention_for_cpu.default"
BACKWARD = "aten._scaled_dot_product_flash_attention_for_cpu_backward.default"


def scalars(model: LanguageModel, length: int) -> int:
    """The trainable scalars of the network, on fake tensors."""
    with FakeTensorMode():
        return sum(p.numel() for p in Decoder(model, length).parameters())


@pytest.mark.parametrize("name", NAMED)
def test_parameters_are_those_published(name):
    assert workloads.get(name).parameters == NAMED[name].model.parameters(NAMED[name].length)
    assert workloads.get(name).parameters == PUBLISHED.get(name, 12_853_954_560)  # of MPT-13b nobody prints it


@pytest.mark.sampled(5)
@pytest.mark.parametrize("name", NAMED)
def test_a_named_network_has_these_parameters(name):
    """Every block has as many as the last one of those that are made, but for dense ones, which come first."""
    model, length = NAMED[name].model, NAMED[name].length
    made = model.dense_layers + 1
    one, two = (scalars(replace(model, layers=layers), length) for layers in (made, made + 1))
    assert one + (model.layers - made) * (two - one) == workloads.get(name).parameters


@pytest.mark.thorough
@pytest.mark.parametrize("name", ["llama3:405b", "mpt:70b", "qwen3:8b"])
def test_a_whole_network_has_these_parameters(name):
    assert scalars(NAMED[name].model, NAMED[name].length) == workloads.get(name).parameters


def test_a_card_names_the_model_of_its_sizes():
    assert workloads.get("meta-llama/Llama-3.1-8B-Instruct") is workloads.get("llama3:8b")
    assert workloads.language_model("openai-community/gpt2-xl") == NAMED["gpt2:xl"].model
    assert workloads.is_language_model("Qwen/Qwen3-0.6B")
    assert set(_CARDS.values()) <= set(NAMED)
    assert all(card == card.lower() and card not in NAMED for card in _CARDS)


@pytest.mark.parametrize("spec", FORMS)
def test_every_form_has_the_parameters_that_are_stated(spec):
    assert scalars(read(spec), 12) == read(spec).parameters(12)


def test_what_need_not_be_given_is_that_of_gpt2_and_llama2():
    assert read("lm:form=gpt,layers=12,d_model=768,heads=12,context=1024") == NAMED["gpt2:small"].model
    assert read("lm:form=llama,layers=32,d_model=4096,heads=32") == NAMED["llama2:7b"].model


@pytest.mark.parametrize(
    ("spec", "code", "words"),
    [
        ("lm:", Code.NAME, "unknown option of lm: ''"),
        ("lm:form=gpt,layer=2", Code.NAME, "unknown option of lm: 'layer' .did you mean 'layers'"),
        ("lm:form=gpt,loss=fast", Code.NAME, "unknown loss of lm: 'fast'; expected one of: plain, fused"),
        ("lm:form=bert", Code.NAME, "unknown form of lm: 'bert'; expected one of: gpt, llama"),
        ("lm:form=gpt,layers=2", Code.REQUEST, "lm: lacks d_model, heads; give it as in lm:form=llama,"),
        ("lm:form=gpt,form=gpt", Code.REQUEST, "lm: has form twice"),
        ("lm:form=gpt,layers=0", Code.REQUEST, "layers='0'; expected a number from 1 to 1,000"),
        ("lm:form=gpt,layers=²", Code.REQUEST, "expected a number from 1 to 1,000"),
        ("lm:form=gpt,d_model", Code.REQUEST, "d_model=''; expected a number from 1 to 1,000,000"),
        ("lm:form=gpt,tied=yes", Code.REQUEST, "tied='yes'; expected on or off"),
        ("lm:form=gpt,layers=2,d_model=64,heads=5", Code.REQUEST, "d_model=64, heads=5 and kv_heads=5; expected heads that divide"),
        ("lm:form=llama,layers=2,d_model=12,heads=4", Code.REQUEST, "3 elements per head; expected an even number"),
        (f"{LLAMA},q_lora=8,rope_dim=4", Code.REQUEST, "kv_lora=0, q_lora=8, rope_dim=4, kv_heads=2 and positions=rotary"),
        (f"{LLAMA},experts=8", Code.REQUEST, "experts=8, active=0, expert_ffn=0 and dense_layers=0; expected form=llama with experts,"),
        (f"{GPT},experts=8,active=2,expert_ffn=32", Code.REQUEST, "has form=gpt, layers=2, experts=8"),
        (f"{LLAMA},shared_ffn=16", Code.REQUEST, "experts=0, active=0"),
        (f"{LLAMA},experts=8,active=9,expert_ffn=32", Code.REQUEST, "no more active than experts"),
        (f"{LLAMA},experts=8,active=2,expert_ffn=36", Code.REQUEST, "d_model=64 and expert_ffn=36; expected multiples of 8"),
        ("lama3:8b", Code.NAME, "unknown model 'lama3:8b' .did you mean 'llama3:8b'"),
        ("mpt:7", Code.NAME, "unknown model 'mpt:7' .did you mean 'mpt:7"),
    ],
)
def test_a_form_or_name_that_does_not_exist_is_refused(spec, code, words):
    with refuses(code, words):
        _ = Job(spec, 1).factory


def test_a_user_s_module_is_still_found_by_its_name(tmp_path, monkeypatch):
    (tmp_path / "llama9.py").write_text("def make(batch):\n    raise RuntimeError('mine')\n")
    monkeypatch.chdir(tmp_path)
    assert Job("llama9:make", 1).factory.name == "llama9:make"


# What the networks compute.


@pytest.mark.parametrize("spec", FORMS)
def test_no_token_sees_those_behind_it(spec):
    torch.manual_seed(0)
    model = Decoder(read(spec), 12).double()
    tokens = torch.randint(100, (1, 12))
    changed = tokens.clone()
    changed[0, 7] = (tokens[0, 7] + 1) % 100
    before, after = model(tokens), model(changed)
    torch.testing.assert_close(before[:, :7], after[:, :7], rtol=0, atol=1e-14)
    assert (before[:, 7:] - after[:, 7:]).abs().amax(-1).min() > 1e-6


def test_rotary_positions_are_relative():
    """A product of rotated vectors depends on the distance of their positions alone."""
    torch.manual_seed(0)
    query, key = (torch.randn(8, dtype=torch.float64).expand(1, 20, 1, 8) for _ in range(2))
    turns = turns_by(20, 8)
    products = (rotated(query, turns)[0, :, 0] @ rotated(key, turns)[0, :, 0].T).detach()
    for distance in (0, 3, 11):
        own = products.diagonal(distance)
        torch.testing.assert_close(own, own[:1].expand_as(own), rtol=1e-5, atol=1e-5)  # the table is in float32
    assert products[0, 0] != pytest.approx(products[0, 3])


def test_alibi_adds_a_slope_per_head_times_the_distance():
    added = alibi(4, 2)
    assert added.shape == (1, 2, 4, 4)
    assert added[0, 0, 3].tolist() == [-3 / 16, -2 / 16, -1 / 16, 0]
    assert added[0, 1, 3].tolist() == [-3 / 256, -2 / 256, -1 / 256, 0]
    assert added[0, 0, 0].tolist() == [0, -math.inf, -math.inf, -math.inf]


def test_grouped_attention_is_that_of_repeated_keys_and_values():
    torch.manual_seed(0)
    attention = Attention(read(f"{LLAMA},norm=layer")).double()
    x, turns = torch.randn(2, 6, 64, dtype=torch.float64), turns_by(6, 16)
    query, key, value = (layer(x).unflatten(-1, (-1, 16)) for layer in (attention.query, attention.key, attention.value))
    query, key = rotated(query, turns), rotated(key, turns)
    scores = torch.einsum("nthe,nshe->nhts", query, key.repeat_interleave(2, 2)) / 4
    weights = scores.masked_fill(torch.ones(6, 6, dtype=torch.bool).triu(1), -math.inf).softmax(-1)
    out = torch.einsum("nhts,nshe->nthe", weights, value.repeat_interleave(2, 2)).flatten(2)
    torch.testing.assert_close(attention(x, turns), F.linear(out, attention.output.weight), rtol=1e-10, atol=1e-12)


def test_experts_compute_what_a_loop_over_tokens_does():
    torch.manual_seed(0)
    model = read(EXPERTS)
    experts = Experts(model).double()
    x = torch.randn(2, 6, 64, dtype=torch.float64)
    expected = experts.shared(x)
    for sequence, token in product(range(2), range(6)):
        row = x[sequence, token]
        scores = experts.router(row).softmax(-1)
        chosen = scores.argsort(descending=True)[: model.active]
        for expert in chosen.tolist():
            gate, up = (experts.gate_up[expert] @ row).chunk(2)
            expected[sequence, token] += scores[expert] / scores[chosen].sum() * (experts.down[expert] @ (F.silu(gate) * up))
    torch.testing.assert_close(experts(x), expected, rtol=1e-10, atol=1e-12)


# Captured and executed.


def counts(job: Job) -> Counter:
    return Counter(op.body.target for op in job.graph().ops)


@pytest.mark.sampled(4)
@pytest.mark.parametrize("precision", ["fp32", "bf16", "amp"])
@pytest.mark.parametrize("spec", [LLAMA, GPT, f"{GPT},kv_heads=1", f"{GPT},positions=alibi"])
def test_attention_is_one_op_forward_and_one_backward(spec, precision):
    job = Job(spec, 2, 12, precision=precision).on("gpu")
    model, found = read(spec), counts(job)
    assert (found[FORWARD], found[BACKWARD]) == (2, 2)
    assert not {name for name in found if name.startswith("aten.bmm") or "repeat" in name or "softmax.default" in name} - {
        "aten._log_softmax.default"
    }
    for op in job.graph().ops:
        if op.body.target in (FORWARD, BACKWARD):
            _, key, value = op.inputs[:3] if op.body.target == FORWARD else op.inputs[1:4]
            assert key.shape == value.shape == (2, model.kv_heads, 12, 16)
            assert key.dtype == ("float32" if precision == "fp32" else "bfloat16")
            work = extents_of(op)
            assert isinstance(work, AttentionWork)
            assert (work.batch, work.queries, work.keys, work.width) == (8, 12, 12, 16)
            assert work.seen == (0.5 if model.positions != "alibi" else 1.0)


def test_weights_take_no_memory():
    """Those of this model would take 22 TB."""
    spec = "lm:form=llama,layers=2,d_model=524288,heads=512,kv_heads=8"
    graph = Job(spec, 1, 16).graph()
    assert 22e12 < sum(graph.storage_bytes[name] for name in graph.parameters) == 4 * read(spec).parameters(16)


@pytest.mark.parametrize("precision", ["fp32", "bf16", "amp"])
def test_rms_norm_is_one_op_and_two_kernels_of_its_gradients(precision):
    found = counts(Job(LLAMA, 2, 12, precision=precision).on("gpu"))
    assert (found["aten._fused_rms_norm.default"], found["aten._fused_rms_norm_backward.default"]) == (5, 10)
    assert found["aten.rsqrt.default"] == 0


def test_a_fused_loss_is_one_op_each_way_and_makes_nothing_as_wide_as_the_logits_but_their_gradient():
    job = Job(f"{LLAMA},loss=fused", 2, 12, precision="amp").on("gpu")
    found = counts(job)
    assert (found["schedcast.cross_entropy.default"], found["schedcast.cross_entropy_backward.default"]) == (1, 1)
    wide = [operand for op in job.graph().ops for operand in op.writes if operand.elements == 2 * 12 * 100]
    assert [operand.dtype for operand in wide] == ["bfloat16", "bfloat16"]
    plain = [
        operand.dtype
        for op in Job(LLAMA, 2, 12, precision="amp").on("gpu").graph().ops
        for operand in op.writes
        if operand.elements == 2400
    ]
    assert sorted(plain) == ["bfloat16"] * 2 + ["float32"] * 4


@pytest.mark.sampled(3)
@pytest.mark.parametrize("precision", ["fp32", "bf16", "amp", "mixed", "fp64"])
def test_experts_are_products_of_groups_of_static_shapes(precision):
    """24 tokens for 2 of 8 experts each make 48 rows; forward has two products, and backward two for each of these."""
    graph = Job(EXPERTS, 2, 12, precision=precision).on("gpu").graph()
    products = [op for op in graph.ops if op.body.target == GROUPED_PRODUCT]
    assert [tuple(operand.shape for operand in (*op.inputs[:2], *op.writes)) for op in products] == [
        ((48, 64), (8, 64, 64), (48, 64)), ((48, 32), (8, 32, 64), (48, 64)),
        ((64, 48), (48, 32), (8, 64, 32)), ((48, 64), (8, 64, 32), (48, 32)),
        ((64, 48), (48, 64), (8, 64, 64)), ((48, 64), (8, 64, 64), (48, 64)),
    ]  # fmt: skip
    assert sum(op.body.flops for op in products) == 3 * 2 * 48 * 3 * 64 * 32  # of active experts only
    works = [extents_of(op) for op in products]
    assert works[0] == Product(8.0, 6.0, 64.0, 64.0, {"fp32": 4.0, "fp64": 8.0}.get(precision, 2.0)), "six tokens for each expert"
    assert [work[:4] for work in works[2:4]] == [(8.0, 64.0, 32.0, 6.0), (8.0, 6.0, 32.0, 64.0)]
    work = products[0].body.work(products[0])
    size = int(works[0].size)
    assert work.op_class == "matmul"
    assert work.bytes == size * (48 * 64 + 8 * 64 * 64 + 48 * 64) + 4 * 8, "the weights of all experts are read"
    assert not graph.assumptions


def test_flops_are_those_of_the_parameters_that_are_active():
    """6 FLOPs per active weight of a product and token, and attention's."""
    graph = Job(EXPERTS, 1, 16).graph()
    block = 64 * (64 + 2 * 32 + 64)
    mixture = 64 * (8 + 2 * 3 * 32 + 3 * 16)
    weights = 2 * block + 3 * 64 * 96 + mixture + 64 * 100
    attention = 2 * 7 * 2 * 4 * 16 * 16 * 16  # 2 layers, 2 products forward and 5 backward, 4 heads of 16
    assert sum(op.body.flops for op in graph.ops) == 16 * 6 * weights + attention


@pytest.mark.sampled(4)
@pytest.mark.parametrize("spec", FORMS)
def test_trains_as_in_plain_pytorch(spec, two_cores, backend):
    assert_trains_alike(Job(spec, 2, 12, optimizer="adam", precision="fp64"), two_cores, backend)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("spec", [LLAMA, EXPERTS, f"{GPT},norm=low,loss=fused"])
@pytest.mark.parametrize("precision", ["bf16", "amp"])
def test_trains_as_in_plain_pytorch_with_lower_precision(spec, precision, two_cores, backend):
    assert_trains_alike(Job(spec, 2, 12, optimizer="sgd", precision=precision), two_cores, backend, ("baseline",))
