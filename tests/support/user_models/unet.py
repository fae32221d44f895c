"""Segmentation: a small U-Net with one learned and one interpolating upsampling, trained on its own pixel loss."""

import torch
from torch import nn
from torch.nn import functional as F


def double_conv(inputs, outputs):
    return nn.Sequential(
        nn.Conv2d(inputs, outputs, 3, padding=1),
        nn.BatchNorm2d(outputs),
        nn.LeakyReLU(0.1, inplace=True),
        nn.Conv2d(outputs, outputs, 3, padding=1),
        nn.ReLU(inplace=True),
    )


class UNet(nn.Module):
    def __init__(self, width=8):
        super().__init__()
        self.down1 = double_conv(3, width)
        self.down2 = double_conv(width, 2 * width)
        self.bottom = double_conv(2 * width, 4 * width)
        self.up2 = nn.ConvTranspose2d(4 * width, 2 * width, 2, stride=2)
        self.merge2 = double_conv(4 * width, 2 * width)
        self.merge1 = double_conv(3 * width, width)
        self.head = nn.Conv2d(width, 1, 1)

    def forward(self, image):
        first = self.down1(image)
        second = self.down2(F.max_pool2d(first, 2))
        x = self.bottom(F.avg_pool2d(second, 2))
        x = self.merge2(torch.cat([self.up2(x), second], dim=1))
        x = F.interpolate(x, scale_factor=2, mode="bilinear", align_corners=False)
        x = self.merge1(torch.cat([x, first], dim=1))
        return self.head(x).squeeze(1)


def pixel_loss(logits, mask):
    mask = mask.to(logits.dtype)
    probability = logits.sigmoid()
    overlap = (probability * mask).sum(dim=(1, 2))
    dice = 1 - (2 * overlap + 1) / (probability.sum(dim=(1, 2)) + mask.sum(dim=(1, 2)) + 1)
    return F.binary_cross_entropy_with_logits(logits, mask) + dice.mean()


def make(batch_size):
    images = torch.randn(batch_size, 3, 16, 16)
    masks = torch.randint(0, 2, (batch_size, 16, 16))
    return UNet(), (images,), masks, pixel_loss
