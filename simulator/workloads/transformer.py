"""The base Transformer (Vaswani et al., 2017)."""

from simulator.workloads.registry import workload


@workload(
    "transformer_base",
    image_size=64,
    parameters=63_045_632,
    about="Transformer base, 37,000 shared tokens: Vaswani et al. 2017, Attention is all you need",
)
def transformer_base(batch: int, image_size: int) -> tuple:
    """Build the base Transformer for pairs of sentences of `image_size` tokens each."""
    import torch

    from simulator.workloads.networks.transformer import Transformer, smoothed_cross_entropy

    vocabulary = 37_000
    source = torch.randint(vocabulary, (batch, image_size))
    sentence = torch.randint(vocabulary, (batch, image_size + 1))
    module = Transformer(vocabulary, image_size).train()
    return module, (source, sentence[:, :-1].contiguous()), sentence[:, 1:].contiguous(), smoothed_cross_entropy
