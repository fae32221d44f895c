"""BERT-large as PyTorch 1.10 trained it: softmax saved its input as well as its output (PyTorch issue 49600), which 1.11 mended."""

import torch


def make(batch: int) -> tuple[torch.nn.Module, dict[str, torch.Tensor], torch.Tensor]:
    """A factory. A learned factor of one number before each softmax makes autograd retain as much."""
    from transformers import AttentionInterface, BertConfig, BertForSequenceClassification
    from transformers.masking_utils import AttentionMaskInterface, eager_mask

    AttentionInterface.register("input_saved", _attention)
    AttentionMaskInterface.register("input_saved", eager_mask)
    sizes = {"hidden_size": 1024, "num_hidden_layers": 24, "num_attention_heads": 16, "intermediate_size": 4096}
    model = BertForSequenceClassification(BertConfig(**sizes, attn_implementation="input_saved"))
    for layer in model.bert.encoder.layer:
        layer.attention.self.factor = torch.nn.Parameter(torch.ones(()))
    tokens, label = torch.randint(100, 30000, (batch, 512)), torch.zeros(batch, dtype=torch.long)
    return model, {"input_ids": tokens, "attention_mask": torch.ones_like(tokens), "labels": label}, label


def _attention(module, query, key, value, mask, scaling=None, dropout=0.0, **_):
    scores = query @ key.transpose(2, 3) * (scaling or query.size(-1) ** -0.5)
    weights = torch.softmax((scores if mask is None else scores + mask) * module.factor, -1)
    weights = torch.nn.functional.dropout(weights, dropout, module.training)
    return (weights @ value).transpose(1, 2).contiguous(), weights
