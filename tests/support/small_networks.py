"""The classes of the built-in networks in sizes that train in milliseconds."""

from torch import Tensor, randint, randn

from simulator.model.workloads.networks import language, sequences, shortcuts


def bert(batch: int) -> tuple:
    return language.masked_tokens(batch, 8, 16, 2, 1)


def bert_qa(batch: int) -> tuple:
    return language.answers(batch, 8, 16, 2, 1)


def gpt2(batch: int) -> tuple:
    return language.next_tokens(batch, 8, 16, 2, 1)


def transformer(batch: int) -> tuple:
    words, length = 50, 6
    source, target, following = (randint(words, (batch, length)) for _ in range(3))
    return sequences.Transformer(words, length, 16, 2, 32, 1).train(), (source, target), following, sequences.smoothed_loss


def _images(network, batch: int) -> tuple:
    return network.train(), (randn(batch, 3, 32, 32),), _classes(batch)


def _classes(batch: int) -> Tensor:
    return randint(5, (batch,))


def resnet(batch: int) -> tuple:
    return _images(shortcuts.ResNet((1, 1, 1, 1), bottleneck=False, classes=5), batch)


def densenet(batch: int) -> tuple:
    return _images(shortcuts.DenseNet((1, 1, 1, 1), growth=4, classes=5), batch)
