"""The models of the zoo, in sizes that run on two cores."""

from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Entry:
    """A model by its `--model` name, with a batch and an image size or number of tokens (None: the model's own).

    `settings`: those in which a model of transformers differs from its type's default, as in a config.json.
    """

    model: str
    batch: int = 2
    size: int | None = None
    settings: dict[str, Any] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """What the table calls it."""
        return self.model.rpartition(":")[2]

    @property
    def source(self) -> str:
        """The library, or "own"."""
        library = self.model.partition(":")[0]
        return {"hf": "transformers", "tools.zoo.networks": "own"}.get(library, library)


_TORCHVISION = (
    "resnet18", "wide_resnet50_2", "resnext50_32x4d", "densenet121", "vgg11_bn", "alexnet", "squeezenet1_1", "mobilenet_v2",
    "mobilenet_v3_small", "shufflenet_v2_x1_0", "mnasnet0_5", "efficientnet_b0", "efficientnet_v2_s", "regnet_y_400mf", "convnext_tiny",
)  # fmt: skip
_TORCHVISION_OWN_SIZE = ("googlenet", "inception_v3", "swin_t", "swin_v2_t", "vit_b_16", "maxvit_t")
_TIMM = (
    "vit_tiny_patch16_224", "deit_tiny_distilled_patch16_224", "beit_base_patch16_224", "levit_128s", "coatnet_0_rw_224", "mixer_s32_224",
    "resmlp_12_224", "gmlp_ti16_224", "cait_xxs24_224", "xcit_nano_12_p16_224", "pit_ti_224", "convit_tiny", "crossvit_tiny_240",
    "edgenext_xx_small", "mobilevit_xxs", "poolformer_s12", "convnextv2_atto", "ghostnet_100", "hrnet_w18_small", "nfnet_f0", "rexnet_100",
    "tf_efficientnet_lite0", "repvgg_a0", "visformer_tiny", "volo_d1_224", "twins_pcpvt_small", "pvt_v2_b0", "davit_tiny",
    "eva02_tiny_patch14_224",
)  # fmt: skip
#: A text model that is a tenth as large as its type's default.
_SMALL = {"num_hidden_layers": 2, "hidden_size": 128, "num_attention_heads": 4, "intermediate_size": 256, "vocab_size": 2000}
_TEXT = (
    "bert", "roberta", "albert", "electra", "deberta-v2", "mpnet", "roformer", "xlm-roberta", "convbert", "nystromformer",
)  # fmt: skip
_CAUSAL = ("llama", "mistral", "qwen2", "gemma", "phi", "gpt_neox", "stablelm", "olmo", "starcoder2")
_SHORT = {
    "d_model": 128, "encoder_layers": 2, "decoder_layers": 2, "encoder_ffn_dim": 256, "decoder_ffn_dim": 256, "vocab_size": 2000,
    "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 2,
}  # fmt: skip
_OWN = (
    "unet", "gan_discriminator", "lstm_tagger", "graph_network", "mixture_of_experts", "diffusion_block", "dlrm", "seq2seq",
)  # fmt: skip

ENTRIES: tuple[Entry, ...] = (
    *(Entry(f"tools.zoo.networks:{name}", 4) for name in _OWN),
    *(Entry(f"torchvision:{name}", size=64) for name in _TORCHVISION),
    *(Entry(f"torchvision:{name}") for name in _TORCHVISION_OWN_SIZE),
    Entry("torchvision:fcn_resnet50", size=64),
    Entry("torchvision:r3d_18", size=32),
    *(Entry(f"timm:{name}") for name in _TIMM),
    *(Entry(f"hf:{kind}", size=32, settings=_SMALL) for kind in _TEXT),
    Entry("hf:modernbert", size=32, settings={**_SMALL, "pad_token_id": 0}),
    Entry("hf:falcon", size=32, settings=_SMALL),
    Entry("hf:distilbert", size=32, settings={"n_layers": 2, "dim": 128, "n_heads": 4, "hidden_dim": 256, "vocab_size": 2000}),
    Entry("hf:gpt2", size=32, settings={"n_layer": 2, "n_embd": 128, "n_head": 4, "vocab_size": 2000}),
    *(Entry(f"hf:{kind}", size=32, settings={**_SMALL, "num_key_value_heads": 4, "head_dim": 32}) for kind in _CAUSAL),
    Entry("hf:mixtral", size=32, settings={**_SMALL, "num_key_value_heads": 4, "num_local_experts": 4}),
    Entry("hf:t5", size=32, settings={"num_layers": 2, "d_model": 128, "num_heads": 4, "d_kv": 32, "d_ff": 256, "vocab_size": 2000}),
    *(Entry(f"hf:{kind}", size=32, settings=_SHORT) for kind in ("bart", "marian", "pegasus")),
    Entry("hf:whisper", settings={**_SHORT, "max_source_positions": 64, "encoder_attention_heads": 4, "decoder_attention_heads": 4}),
    Entry("hf:wav2vec2", settings={key: value for key, value in _SMALL.items() if key != "vocab_size"}),
    *(Entry(f"hf:{kind}", settings={k: _SMALL[k] for k in _SMALL if k != "vocab_size"}) for kind in ("vit", "deit", "beit")),
    Entry("hf:clip"),
)
