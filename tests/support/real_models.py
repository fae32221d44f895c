"""Small models of timm and transformers, with random weights: of every family one, as real as its code and as small as it can be.

Each function is a factory: `factory(batch_size)` returns the module, its inputs, the target and, unless it is cross-entropy, the loss.
"""

from collections.abc import Callable

import torch
from torch import nn
from torch.nn import functional as F

WORDS, WIDTH, LENGTH, CLASSES = 50, 24, 10, 10
_TEXT = {"vocab_size": WORDS, "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}
_HEADS = {"num_hidden_layers": 2, "num_attention_heads": 2, "hidden_size": WIDTH, "intermediate_size": 2 * WIDTH}
_LAYERS = {f"{side}_{what}": 2 for side in ("encoder", "decoder") for what in ("layers", "attention_heads")}
_SEQUENCES = _TEXT | _LAYERS | {"d_model": WIDTH, "encoder_ffn_dim": 2 * WIDTH, "decoder_ffn_dim": 2 * WIDTH, "decoder_start_token_id": 1}


class _Of(nn.Module):
    """A model of transformers whose output is one tensor of its result."""

    def __init__(self, model: nn.Module, result: str = "logits"):
        super().__init__()
        self.model, self.result = model, result

    def forward(self, **inputs):
        return self.model(**inputs)[self.result]


def _by_word(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    return F.cross_entropy(output.flatten(0, 1), target.flatten())


def _made(kind: str, result: str = "logits", **settings) -> nn.Module:
    """`kind` of transformers, such as GPT2LMHead, and its configuration, such as GPT2."""
    import transformers

    family, _, _ = kind.partition(":")
    return _Of(getattr(transformers, kind.replace(":", ""))(getattr(transformers, f"{family}Config")(**settings)), result)


def _language(batch: int, kind: str, mask: bool = False, **settings) -> tuple:
    words = torch.randint(3, WORDS, (batch, LENGTH))
    seen = torch.ones(batch, LENGTH, dtype=torch.long)
    seen[0, -2:] = 0
    return _made(kind, **_TEXT | settings), {"input_ids": words} | ({"attention_mask": seen} if mask else {}), words, _by_word


def _translation(batch: int, kind: str, inputs: dict[str, torch.Tensor] | None = None, **settings) -> tuple:
    words = torch.randint(3, WORDS, (batch, LENGTH))
    inputs = inputs or {"input_ids": torch.randint(3, WORDS, (batch, LENGTH + 2))}
    return _made(kind, **_SEQUENCES | settings), inputs | {"decoder_input_ids": words}, words, _by_word


def _images(batch: int, name: str, size: int, **settings) -> tuple:
    import timm

    model = timm.create_model(name, num_classes=CLASSES, **settings)
    return model, torch.randn(batch, 3, size, size), torch.randint(0, CLASSES, (batch,))


#: By name, the factory of each model.
MODELS: dict[str, Callable[[int], tuple]] = {
    "gpt2": lambda batch: _language(batch, "GPT2:LMHeadModel", n_embd=WIDTH, n_layer=2, n_head=2, n_positions=16),
    "gpt2_mask": lambda batch: _language(batch, "GPT2:LMHeadModel", True, n_embd=WIDTH, n_layer=2, n_head=2, n_positions=16),
    "llama": lambda batch: _language(batch, "Llama:ForCausalLM", **_HEADS, num_key_value_heads=1),
    "llama_tied": lambda batch: _language(batch, "Llama:ForCausalLM", **_HEADS, num_key_value_heads=1, tie_word_embeddings=True),
    "mixtral": lambda batch: _language(batch, "Mixtral:ForCausalLM", **_HEADS, num_key_value_heads=1, num_local_experts=4),
    "bert": lambda batch: _language(batch, "Bert:ForMaskedLM", True, **_HEADS, max_position_embeddings=16),
    "t5": lambda batch: _translation(batch, "T5:ForConditionalGeneration", d_kv=12, d_ff=2 * WIDTH, num_layers=2, num_heads=2),
    "bart": lambda batch: _translation(batch, "Bart:ForConditionalGeneration", max_position_embeddings=16),
    "whisper": lambda batch: _translation(
        batch, "Whisper:ForConditionalGeneration", {"input_features": torch.randn(batch, 8, 20)},
        num_mel_bins=8, max_source_positions=10, max_target_positions=16,
    ),
    "vit": lambda batch: _images(batch, "vit_tiny_patch16_224", 32, img_size=32, depth=2, embed_dim=WIDTH, num_heads=2),
    "mixer": lambda batch: _images(batch, "mixer_s32_224", 64, img_size=64),
    "swin": lambda batch: _images(
        batch, "swin_tiny_patch4_window7_224", 32, img_size=32, window_size=4, depths=(1, 2), num_heads=(1, 2), embed_dim=12
    ),
    "beit": lambda batch: _images(batch, "beit_base_patch16_224", 32, img_size=32, depth=2, embed_dim=WIDTH, num_heads=2),
    "convnext": lambda batch: _images(batch, "convnext_atto", 32, depths=(1, 1, 1, 1), dims=(8, 16, 24, 32)),
    "levit": lambda batch: _images(batch, "levit_128s", 64, img_size=64),
}  # fmt: skip
globals().update(MODELS)
