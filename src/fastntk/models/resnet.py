"""ResNets for 32×32 images: 6m+2 layers with 16, 32 and 64 channels, m blocks a stage (He et al. 2015, section 4.2).

A block computes ``relu(bn2(conv2(relu(bn1(conv1(x))))) + shortcut(x))``. The shortcuts have no parameters: where a
stage halves the image, every second pixel is taken and the missing channels are zeros, half before, half after.
Not for ImageNet: those are in timm (``timm:resnet50``).
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

import torch.nn.functional as F
from torch import Tensor, nn

RESNET_BLOCKS: Mapping[str, int] = MappingProxyType({"resnet20": 3, "resnet32": 5, "resnet44": 7, "resnet56": 9, "resnet110": 18})


class BasicBlock(nn.Module):
    """Two 3×3 convolutions and a shortcut without parameters: (n, in, h, w) → (n, out, h/stride, w/stride)."""

    def __init__(self, channels_in: int, channels_out: int, *, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels_in, channels_out, 3, stride=stride, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(channels_out)
        self.conv2 = nn.Conv2d(channels_out, channels_out, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(channels_out)
        self.stride = stride
        self.padding = channels_out - channels_in

    def forward(self, x: Tensor) -> Tensor:
        """Return the block's output."""
        residual = self.bn2(self.conv2(F.relu(self.bn1(self.conv1(x)))))
        if self.padding:
            before = self.padding // 2
            x = F.pad(x[:, :, :: self.stride, :: self.stride], (0, 0, 0, 0, before, self.padding - before))
        return F.relu(residual + x)


class CifarResNet(nn.Module):
    """A CIFAR ResNet with ``blocks`` blocks a stage; the head ``fc`` starts at zero."""

    def __init__(self, blocks: int, *, num_classes: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, 16, 3, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(16)
        self.layer1 = _stage(16, 16, blocks=blocks, stride=1)
        self.layer2 = _stage(16, 32, blocks=blocks, stride=2)
        self.layer3 = _stage(32, 64, blocks=blocks, stride=2)
        self.fc = nn.Linear(64, num_classes)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
        nn.init.zeros_(self.fc.weight)
        nn.init.zeros_(self.fc.bias)

    def features(self, x: Tensor) -> Tensor:
        """Return the pooled features (n, 64) of images (n, 3, h, w)."""
        x = F.relu(self.bn1(self.conv1(x)))
        x = self.layer3(self.layer2(self.layer1(x)))
        return x.mean(dim=(2, 3))

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits (n, C) of images (n, 3, h, w)."""
        out: Tensor = self.fc(self.features(x))
        return out


def _stage(channels_in: int, channels_out: int, *, blocks: int, stride: int) -> nn.Sequential:
    first = BasicBlock(channels_in, channels_out, stride=stride)
    rest = [BasicBlock(channels_out, channels_out, stride=1) for _ in range(blocks - 1)]
    return nn.Sequential(first, *rest)


def cifar_resnet(name: str, *, num_classes: int) -> CifarResNet:
    """Build one of :data:`RESNET_BLOCKS` with random weights and a zero head."""
    return CifarResNet(RESNET_BLOCKS[name], num_classes=num_classes)
