"""Networks of the zoo that no library has, each the smallest that has the ops of its kind, as factories."""

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, mse_loss, pad, silu


class UNet(nn.Module):
    """Two levels of a U-Net with transposed convolutions (Ronneberger et al. 2015)."""

    def __init__(self):
        super().__init__()
        self.first, self.inner = self._pair(3, 16), self._pair(16, 32)
        self.up, self.last, self.head = nn.ConvTranspose2d(32, 16, 2, 2), self._pair(32, 16), nn.Conv2d(16, 5, 1)

    @staticmethod
    def _pair(channels: int, out: int) -> nn.Sequential:
        layers = (nn.Conv2d(channels, out, 3, padding=1), nn.BatchNorm2d(out), nn.ReLU(), nn.Conv2d(out, out, 3, padding=1), nn.ReLU())
        return nn.Sequential(*layers)

    def forward(self, x: Tensor) -> Tensor:
        kept = self.first(x)
        return self.head(self.last(torch.cat([kept, self.up(self.inner(nn.functional.max_pool2d(kept, 2)))], 1)))


def unet(batch: int) -> tuple:
    """Make a U-Net for segmentation."""
    return UNet(), torch.randn(batch, 3, 32, 32), torch.randint(5, (batch, 32, 32))


def gan_discriminator(batch: int) -> tuple:
    """Make the discriminator of DCGAN with spectral normalization."""
    layers: list[nn.Module] = []
    for channels, out in ((3, 16), (16, 32), (32, 64)):
        layers += [nn.utils.parametrizations.spectral_norm(nn.Conv2d(channels, out, 4, 2, 1)), nn.LeakyReLU(0.2)]
    module = nn.Sequential(*layers, nn.Flatten(), nn.Linear(64 * 16, 1))
    return module, torch.randn(batch, 3, 32, 32), torch.rand(batch, 1).round(), nn.functional.binary_cross_entropy_with_logits


class Tagger(nn.Module):
    """A bidirectional LSTM of two layers with dropout between them."""

    def __init__(self):
        super().__init__()
        self.embedding, self.head = nn.Embedding(100, 32), nn.Linear(64, 7)
        self.lstm = nn.LSTM(32, 32, 2, batch_first=True, bidirectional=True, dropout=0.1)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(self.lstm(self.embedding(tokens))[0]).flatten(0, 1)


def lstm_tagger(batch: int) -> tuple:
    """Make a tagger of 12 tokens."""
    tags = torch.randint(7, (batch, 12))
    return Tagger(), torch.randint(100, (batch, 12)), tags, lambda output, target: cross_entropy(output, target.flatten())


class GraphNetwork(nn.Module):
    """Two rounds of messages along edges, summed by index_add."""

    def __init__(self):
        super().__init__()
        self.message, self.update, self.head = nn.Linear(32, 16), nn.Linear(32, 16), nn.Linear(16, 3)

    def forward(self, nodes: Tensor, source: Tensor, sink: Tensor) -> Tensor:
        for _ in range(2):
            messages = self.message(torch.cat([nodes[source], nodes[sink]], 1)).relu()
            received = torch.zeros_like(nodes).index_add(0, sink, messages)
            nodes = self.update(torch.cat([nodes, received], 1)).relu()
        return self.head(nodes)


def graph_network(batch: int) -> tuple:
    """Make a graph network on a graph of `batch` nodes with six edges each."""
    edges = torch.randint(batch, (6 * batch,)), torch.randint(batch, (6 * batch,))
    return GraphNetwork(), (torch.randn(batch, 16), *edges), torch.randint(3, (batch,))


class Experts(nn.Module):
    """A mixture of experts: each token goes to the two experts with the largest weights, by boolean masks."""

    def __init__(self):
        super().__init__()
        self.router, self.head = nn.Linear(16, 4), nn.Linear(16, 5)
        self.experts = nn.ModuleList(nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 16)) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        weights, chosen = self.router(x).softmax(-1).topk(2)
        out = torch.zeros_like(x)
        for number, expert in enumerate(self.experts):
            token, place = torch.where(chosen == number)
            out = out.index_add(0, token, expert(x[token]) * weights[token, place, None])
        return self.head(out)


def mixture_of_experts(batch: int) -> tuple:
    """Make a mixture of experts for eight tokens per sample."""
    return Experts(), torch.randn(batch * 8, 16), torch.randint(5, (batch * 8,))


class DiffusionBlock(nn.Module):
    """A residual block with group-norm, a time embedding and self-attention, as in a diffusion U-Net (Ho et al. 2020)."""

    def __init__(self):
        super().__init__()
        self.first, self.second, self.time = nn.Conv2d(3, 32, 3, padding=1), nn.Conv2d(32, 3, 3, padding=1), nn.Linear(16, 32)
        self.norm, self.attention = nn.GroupNorm(8, 32), nn.MultiheadAttention(32, 4, batch_first=True)

    def forward(self, x: Tensor, time: Tensor) -> Tensor:
        angles = time[:, None] * torch.exp(-torch.arange(8, device=x.device))
        h = self.first(x) + self.time(torch.cat([angles.sin(), angles.cos()], 1))[:, :, None, None]
        tokens = silu(self.norm(h)).flatten(2).transpose(1, 2)
        return x + self.second(h + self.attention(tokens, tokens, tokens, need_weights=False)[0].transpose(1, 2).reshape(h.shape))


def diffusion_block(batch: int) -> tuple:
    """Make a diffusion block that predicts noise."""
    return DiffusionBlock(), (torch.randn(batch, 3, 16, 16), torch.rand(batch)), torch.randn(batch, 3, 16, 16), mse_loss


class Dlrm(nn.Module):
    """Dense features and bags of categories that interact by products (Naumov et al. 2019)."""

    def __init__(self):
        super().__init__()
        self.bags = nn.ModuleList(nn.EmbeddingBag(50, 16, mode="sum") for _ in range(3))
        self.bottom, self.top = (
            nn.Sequential(nn.Linear(13, 16), nn.ReLU()),
            nn.Sequential(nn.Linear(16 + 6, 16), nn.ReLU(), nn.Linear(16, 1)),
        )

    def forward(self, dense: Tensor, categories: Tensor) -> Tensor:
        bottom = self.bottom(dense)
        features = torch.stack([bottom, *(bag(categories[:, i]) for i, bag in enumerate(self.bags))], 1)
        rows, columns = torch.triu_indices(4, 4, 1)
        products = features @ features.transpose(1, 2)
        return self.top(torch.cat([bottom, products[:, rows, columns]], 1))


def dlrm(batch: int) -> tuple:
    """Make a recommender with three bags of five categories."""
    loss = nn.functional.binary_cross_entropy_with_logits
    return Dlrm(), (torch.randn(batch, 13), torch.randint(50, (batch, 3, 5))), torch.rand(batch, 1).round(), loss


class Seq2Seq(nn.Module):
    """An encoder and a decoder of GRUs with attention between them."""

    def __init__(self):
        super().__init__()
        self.embedding, self.head = nn.Embedding(50, 32), nn.Linear(64, 50)
        self.encoder, self.decoder = nn.GRU(32, 32, batch_first=True), nn.GRU(32, 32, batch_first=True)

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        memory, state = self.encoder(self.embedding(source))
        out = self.decoder(self.embedding(pad(target, (1, 0))[:, :-1]), state)[0]
        context = (out @ memory.transpose(1, 2)).softmax(-1) @ memory
        return self.head(torch.cat([out, context], 2)).flatten(0, 1)


def seq2seq(batch: int) -> tuple:
    """Make a translator of ten tokens to eight."""
    target = torch.randint(50, (batch, 8))
    inputs = torch.randint(50, (batch, 10)), target
    return Seq2Seq(), inputs, target, lambda output, target: cross_entropy(output, target.flatten())
