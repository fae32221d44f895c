"""Networks of the zoo that no library has, each the smallest that has the ops of its kind, as factories."""

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, mse_loss, pad, silu

from tests.support.models import Net


def unet(batch: int) -> tuple:
    """Make two levels of a U-Net for segmentation with transposed convolutions (Ronneberger et al. 2015)."""

    def pair(channels: int, out: int) -> nn.Sequential:
        layers = (nn.Conv2d(channels, out, 3, padding=1), nn.BatchNorm2d(out), nn.ReLU(), nn.Conv2d(out, out, 3, padding=1), nn.ReLU())
        return nn.Sequential(*layers)

    def step(net: Net, x: Tensor) -> Tensor:
        kept = net.first(x)
        return net.head(net.last(torch.cat([kept, net.up(net.inner(nn.functional.max_pool2d(kept, 2)))], 1)))

    parts = {"up": nn.ConvTranspose2d(32, 16, 2, 2), "last": pair(32, 16), "head": nn.Conv2d(16, 5, 1)}
    return Net(step, first=pair(3, 16), inner=pair(16, 32), **parts), torch.randn(batch, 3, 32, 32), torch.randint(5, (batch, 32, 32))


def gan_discriminator(batch: int) -> tuple:
    """Make the discriminator of DCGAN with spectral normalization."""
    layers: list[nn.Module] = []
    for channels, out in ((3, 16), (16, 32), (32, 64)):
        layers += [nn.utils.parametrizations.spectral_norm(nn.Conv2d(channels, out, 4, 2, 1)), nn.LeakyReLU(0.2)]
    module = nn.Sequential(*layers, nn.Flatten(), nn.Linear(64 * 16, 1))
    return module, torch.randn(batch, 3, 32, 32), torch.rand(batch, 1).round(), nn.functional.binary_cross_entropy_with_logits


def lstm_tagger(batch: int) -> tuple:
    """Make a tagger of 12 tokens: a bidirectional LSTM of two layers with dropout between them."""

    def step(net: Net, tokens: Tensor) -> Tensor:
        return net.head(net.lstm(net.embedding(tokens))[0]).flatten(0, 1)

    lstm = nn.LSTM(32, 32, 2, batch_first=True, bidirectional=True, dropout=0.1)
    net = Net(step, embedding=nn.Embedding(100, 32), head=nn.Linear(64, 7), lstm=lstm)
    tags = torch.randint(7, (batch, 12))
    return net, torch.randint(100, (batch, 12)), tags, lambda output, target: cross_entropy(output, target.flatten())


def graph_network(batch: int) -> tuple:
    """Make two rounds of messages along edges, summed by index_add, on a graph of `batch` nodes with six edges each."""

    def step(net: Net, nodes: Tensor, source: Tensor, sink: Tensor) -> Tensor:
        for _ in range(2):
            messages = net.message(torch.cat([nodes[source], nodes[sink]], 1)).relu()
            received = torch.zeros_like(nodes).index_add(0, sink, messages)
            nodes = net.update(torch.cat([nodes, received], 1)).relu()
        return net.head(nodes)

    edges = torch.randint(batch, (6 * batch,)), torch.randint(batch, (6 * batch,))
    net = Net(step, message=nn.Linear(32, 16), update=nn.Linear(32, 16), head=nn.Linear(16, 3))
    return net, (torch.randn(batch, 16), *edges), torch.randint(3, (batch,))


def mixture_of_experts(batch: int) -> tuple:
    """Make a mixture for eight tokens per sample: each goes to the two experts with the largest weights, by boolean masks."""

    def step(net: Net, x: Tensor) -> Tensor:
        weights, chosen = net.router(x).softmax(-1).topk(2)
        out = torch.zeros_like(x)
        for number, expert in enumerate(net.experts):
            token, place = torch.where(chosen == number)
            out = out.index_add(0, token, expert(x[token]) * weights[token, place, None])
        return net.head(out)

    experts = nn.ModuleList(nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 16)) for _ in range(4))
    net = Net(step, router=nn.Linear(16, 4), head=nn.Linear(16, 5), experts=experts)
    return net, torch.randn(batch * 8, 16), torch.randint(5, (batch * 8,))


def diffusion_block(batch: int) -> tuple:
    """Make a residual block that predicts noise: group-norm, time embedding, self-attention, as in a U-Net of Ho et al. 2020."""

    def step(net: Net, x: Tensor, time: Tensor) -> Tensor:
        angles = time[:, None] * torch.exp(-torch.arange(8, device=x.device))
        h = net.first(x) + net.time(torch.cat([angles.sin(), angles.cos()], 1))[:, :, None, None]
        tokens = silu(net.norm(h)).flatten(2).transpose(1, 2)
        return x + net.second(h + net.attention(tokens, tokens, tokens, need_weights=False)[0].transpose(1, 2).reshape(h.shape))

    first, second = nn.Conv2d(3, 32, 3, padding=1), nn.Conv2d(32, 3, 3, padding=1)
    parts = {"time": nn.Linear(16, 32), "norm": nn.GroupNorm(8, 32), "attention": nn.MultiheadAttention(32, 4, batch_first=True)}
    inputs = torch.randn(batch, 3, 16, 16), torch.rand(batch)
    return Net(step, first=first, second=second, **parts), inputs, torch.randn(batch, 3, 16, 16), mse_loss


def dlrm(batch: int) -> tuple:
    """Make a recommender: dense features and three bags of five categories interact by products (Naumov et al. 2019)."""

    def step(net: Net, dense: Tensor, categories: Tensor) -> Tensor:
        bottom = net.bottom(dense)
        features = torch.stack([bottom, *(bag(categories[:, i]) for i, bag in enumerate(net.bags))], 1)
        rows, columns = torch.triu_indices(4, 4, 1)
        products = features @ features.transpose(1, 2)
        return net.top(torch.cat([bottom, products[:, rows, columns]], 1))

    net = Net(
        step,
        bags=nn.ModuleList(nn.EmbeddingBag(50, 16, mode="sum") for _ in range(3)),
        bottom=nn.Sequential(nn.Linear(13, 16), nn.ReLU()),
        top=nn.Sequential(nn.Linear(16 + 6, 16), nn.ReLU(), nn.Linear(16, 1)),
    )
    loss = nn.functional.binary_cross_entropy_with_logits
    return net, (torch.randn(batch, 13), torch.randint(50, (batch, 3, 5))), torch.rand(batch, 1).round(), loss


def seq2seq(batch: int) -> tuple:
    """Make a translator of ten tokens to eight: an encoder and a decoder of GRUs with attention between them."""

    def step(net: Net, source: Tensor, target: Tensor) -> Tensor:
        memory, state = net.encoder(net.embedding(source))
        out = net.decoder(net.embedding(pad(target, (1, 0))[:, :-1]), state)[0]
        context = (out @ memory.transpose(1, 2)).softmax(-1) @ memory
        return net.head(torch.cat([out, context], 2)).flatten(0, 1)

    encoder, decoder = (nn.GRU(32, 32, batch_first=True) for _ in range(2))
    net = Net(step, embedding=nn.Embedding(50, 32), head=nn.Linear(64, 50), encoder=encoder, decoder=decoder)
    target = torch.randint(50, (batch, 8))
    inputs = torch.randint(50, (batch, 10)), target
    return net, inputs, target, lambda output, target: cross_entropy(output, target.flatten())
