"""Regression on a frozen random projection, with a robust loss; a head left over from pre-training takes no part."""

import torch
from torch import nn


class Regression(nn.Module):
    def __init__(self):
        super().__init__()
        self.projection = nn.Linear(20, 64)
        self.projection.requires_grad_(False)
        self.hidden = nn.Linear(64, 32)
        self.activation = nn.Softplus()
        self.output = nn.Linear(32, 2)
        self.pretraining_head = nn.Linear(32, 5)

    def forward(self, features):
        x = torch.tanh(self.projection(features))
        mean, log_scale = self.output(self.activation(self.hidden(x))).unbind(-1)
        return mean, log_scale


def negative_log_likelihood(output, target):
    mean, log_scale = output
    return (((target - mean) * torch.exp(-log_scale)).abs() + log_scale).mean()


def make(batch_size):
    features = torch.randn(batch_size, 20)
    target = features[:, :3].sum(1) + 0.1 * torch.randn(batch_size)
    return Regression(), (features,), target, negative_log_likelihood
