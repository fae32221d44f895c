"""BERT (Devlin et al., 2018) on random tokens."""

from typing import TYPE_CHECKING

from simulator.workloads.registry import workload

if TYPE_CHECKING:
    from torch import Tensor

_PAPER = "Devlin et al. 2018, BERT: Pre-training of deep bidirectional transformers"
#: Width, heads and layers.
_BASE, _LARGE = (768, 12, 12), (1024, 16, 24)
#: The share of tokens that the masked language model predicts: every seventh.
_EVERY = 7


@workload("bert_base", image_size=512, parameters=109_514_298, about=f"BERT base, masked language model: {_PAPER}", batch=4)
def bert_base(batch: int, image_size: int) -> tuple:
    """Build BERT base as a masked language model of sequences of `image_size` tokens, 512 at most."""
    return _masked(batch, image_size, *_BASE)


@workload("bert_large", image_size=512, parameters=335_174_458, about=f"BERT large, masked language model: {_PAPER}", batch=4)
def bert_large(batch: int, image_size: int) -> tuple:
    """Build BERT large as a masked language model of sequences of `image_size` tokens, 512 at most."""
    return _masked(batch, image_size, *_LARGE)


@workload("bert_base_qa", image_size=384, parameters=108_893_186, about=f"BERT base, question answering: {_PAPER}", batch=16)
def bert_base_qa(batch: int, image_size: int) -> tuple:
    """Build BERT base with the head that finds an answer in sequences of `image_size` tokens, 512 at most."""
    return _answers(batch, image_size, *_BASE)


@workload("bert_large_qa", image_size=384, parameters=334_094_338, about=f"BERT large, question answering: {_PAPER}", batch=8)
def bert_large_qa(batch: int, image_size: int) -> tuple:
    """Build BERT large with the head that finds an answer in sequences of `image_size` tokens, 512 at most."""
    return _answers(batch, image_size, *_LARGE)


def _masked(batch: int, length: int, width: int, heads: int, depth: int) -> tuple:
    import torch

    from simulator.workloads.networks.language import IGNORED, VOCABULARY, MaskedLanguageModel, masked_loss

    predicted = (torch.arange(length) % _EVERY == 0).expand(batch, length)
    labels = torch.where(predicted, torch.randint(VOCABULARY, (batch, length)), IGNORED)
    return MaskedLanguageModel(width, heads, depth).train(), _inputs(batch, length), labels, masked_loss


def _answers(batch: int, length: int, width: int, heads: int, depth: int) -> tuple:
    import torch

    from simulator.workloads.networks.language import AnswerFinder, answer_loss

    return AnswerFinder(width, heads, depth).train(), _inputs(batch, length), torch.randint(length, (batch, 2)), answer_loss


def _inputs(batch: int, length: int) -> "tuple[Tensor, Tensor, Tensor]":
    """Return tokens, segments and a mask without padding."""
    import torch

    from simulator.workloads.networks.language import VOCABULARY

    tokens = torch.randint(VOCABULARY, (batch, length))
    return tokens, (torch.arange(length) >= length // 2).long().repeat(batch, 1), torch.ones(batch, length)
