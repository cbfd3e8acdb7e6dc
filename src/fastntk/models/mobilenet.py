"""MobileNetV2 for 32×32 images (Sandler et al. 2018), with parameter names as in torchvision's.

Inverted residuals: expand by 6 with a 1×1 convolution, filter each channel 3×3, project back with a linear 1×1.
Here the first convolution and the second stage keep the resolution (strides 1,1,2,2,1,2,1), so that a 32×32 image
ends as 4×4. Channels are multiples of 8; the last convolution has 1 280 whatever the width.
Not for ImageNet: those are in timm (``timm:mobilenetv2_100``).
"""

from __future__ import annotations

from torch import Tensor, nn

MOBILENET_WIDTHS = {"mobilenetv2_x0_5": 0.5}

LAST_CHANNELS = 1280

# (expansion, channels at width 1, blocks, stride of the first block)
STAGES = ((1, 16, 1, 1), (6, 24, 2, 1), (6, 32, 3, 2), (6, 64, 4, 2), (6, 96, 3, 1), (6, 160, 3, 2), (6, 320, 1, 1))


def rounded_channels(channels: float, *, multiple: int = 8) -> int:
    """Round to the nearest multiple of 8, at least 8 and never below 90 % of what was asked."""
    nearest = max(multiple, int(channels + multiple / 2) // multiple * multiple)
    return nearest + multiple if nearest < 0.9 * channels else nearest


def _conv_bn_relu(channels_in: int, channels_out: int, *, kernel: int, stride: int = 1, groups: int = 1) -> nn.Sequential:
    padding = kernel // 2
    conv = nn.Conv2d(channels_in, channels_out, kernel, stride, padding, groups=groups, bias=False)
    return nn.Sequential(conv, nn.BatchNorm2d(channels_out), nn.ReLU6())


class InvertedResidual(nn.Module):
    """Expand, filter, project: (n, in, h, w) → (n, out, h/stride, w/stride), added to x where shapes agree."""

    def __init__(self, channels_in: int, channels_out: int, *, stride: int, expansion: int) -> None:
        super().__init__()
        hidden_dim = channels_in * expansion
        layers: list[nn.Module] = []
        if expansion != 1:
            layers.append(_conv_bn_relu(channels_in, hidden_dim, kernel=1))
        layers.append(_conv_bn_relu(hidden_dim, hidden_dim, kernel=3, stride=stride, groups=hidden_dim))
        layers.append(nn.Conv2d(hidden_dim, channels_out, 1, bias=False))
        layers.append(nn.BatchNorm2d(channels_out))
        self.conv = nn.Sequential(*layers)
        self.adds = stride == 1 and channels_in == channels_out

    def forward(self, x: Tensor) -> Tensor:
        """Return the block's output."""
        out: Tensor = self.conv(x)
        return x + out if self.adds else out


class CifarMobileNetV2(nn.Module):
    """MobileNetV2 of a given width for small images; the head ``classifier.1`` starts at zero."""

    def __init__(self, width: float, *, num_classes: int) -> None:
        super().__init__()
        channels = rounded_channels(32 * width)
        layers: list[nn.Module] = [_conv_bn_relu(3, channels, kernel=3)]
        for expansion, full, blocks, first_stride in STAGES:
            target = rounded_channels(full * width)
            for index in range(blocks):
                stride = first_stride if index == 0 else 1
                layers.append(InvertedResidual(channels, target, stride=stride, expansion=expansion))
                channels = target
        layers.append(_conv_bn_relu(channels, LAST_CHANNELS, kernel=1))
        self.features = nn.Sequential(*layers)
        head = nn.Linear(LAST_CHANNELS, num_classes)
        self.classifier = nn.Sequential(nn.Dropout(0.2), head)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out")
        nn.init.zeros_(head.weight)
        nn.init.zeros_(head.bias)

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits (n, C) of images (n, 3, h, w)."""
        out: Tensor = self.classifier(self.features(x).mean(dim=(2, 3)))
        return out


def cifar_mobilenet(name: str, *, num_classes: int) -> CifarMobileNetV2:
    """Build one of :data:`MOBILENET_WIDTHS` with random weights and a zero head."""
    return CifarMobileNetV2(MOBILENET_WIDTHS[name], num_classes=num_classes)
