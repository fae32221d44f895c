"""GPT-2 (Radford et al., 2019) on random tokens."""

from simulator.workloads.registry import workload

_PAPER = "Radford et al. 2019, Language models are unsupervised multitask learners"


@workload("gpt2", image_size=1024, parameters=124_439_808, about=f"GPT-2, the smallest: {_PAPER}", batch=4)
def gpt2(batch: int, image_size: int) -> tuple:
    """Build GPT-2 with 12 blocks of width 768, for sequences of `image_size` tokens, 1024 at most."""
    return _language_model(batch, image_size, 768, 12, 12)


@workload("gpt2_large", image_size=1024, parameters=774_030_080, about=f"GPT-2 large: {_PAPER}", batch=1)
def gpt2_large(batch: int, image_size: int) -> tuple:
    """Build GPT-2 with 36 blocks of width 1280, for sequences of `image_size` tokens, 1024 at most."""
    return _language_model(batch, image_size, 1280, 20, 36)


def _language_model(batch: int, length: int, width: int, heads: int, depth: int) -> tuple:
    import torch

    from simulator.workloads.networks.gpt2 import GPT2, VOCABULARY, next_token_loss

    text = torch.randint(VOCABULARY, (batch, length + 1))
    return GPT2(width, heads, depth).train(), (text[:, :-1].contiguous(),), text[:, 1:].contiguous(), next_token_loss
