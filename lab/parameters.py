"""The appendix's parameter analysis, counted on the networks themselves.

    convolution    C_o·C_i·K²/g weights, its BatchNorm 2·C_o; the ratio is C_i·K²/(2g)
    ViT block      MLP 8E², queries, keys and values 3E², output projection E²: 12E² weights, with biases and norms 12E² + 13E
    prompts        L_p·E a block; the ratio is 12E/L_p

Paper: a block has 11E². Here: 12E², because the output projection of the attention is part of it.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from functools import cache
from itertools import pairwise

from torch import nn

from fastntk.models import build_model
from fastntk.reproduce import paper
from fastntk.reproduce.expect import network_on_meta
from fastntk.tuning import tune as choose

CNNS = ("resnet110", "mobilenetv2_x0_5")
VITS = ("vit_tiny", "vit_small", "vit_base")
PROMPT_LENGTH = 10


@dataclass(frozen=True)
class ConvKind:
    """A convolution followed by a BatchNorm, and how often a network has it."""

    channels_in: int
    channels_out: int
    kernel: int
    groups: int
    count: int

    @property
    def conv(self) -> int:
        """Weights by the formula."""
        return self.channels_out * self.channels_in * self.kernel**2 // self.groups

    @property
    def norm(self) -> int:
        """Learnable parameters of the BatchNorm by the formula."""
        return 2 * self.channels_out


@dataclass(frozen=True)
class Transformer:
    """A ViT: its width, and what one of its blocks really holds."""

    name: str
    width: int
    blocks: int
    matrices: int
    whole: int

    @property
    def prompts(self) -> int:
        """Prompt parameters of a block."""
        return PROMPT_LENGTH * self.width


@dataclass(frozen=True)
class Share:
    """Tuned parameters of a network, and the published share in per cent."""

    model: str
    classes: int
    tuned: int
    ratio: float
    published: float


def convolutions(model: nn.Module) -> tuple[ConvKind, ...]:
    """The kinds of convolution-BatchNorm pairs, in the order of their first appearance."""
    modules = [module for module in model.modules() if isinstance(module, nn.Conv2d | nn.BatchNorm2d)]
    pairs: Counter[tuple[int, int, int, int]] = Counter()
    for conv, norm in pairwise(modules):
        if isinstance(conv, nn.Conv2d) and isinstance(norm, nn.BatchNorm2d):
            pairs[conv.in_channels, conv.out_channels, conv.kernel_size[0], conv.groups] += 1
    return tuple(ConvKind(*kind, count) for kind, count in pairs.items())


def vit(name: str, *, classes: int) -> nn.Module:
    """timm's ViT/16 without memory for its weights: counts need shapes only."""
    return network_on_meta(f"timm:{name}_patch16_224", classes=classes)


def transformer(name: str) -> Transformer:
    """Count one block of a ViT."""
    model = vit(name, classes=10)
    blocks: list[nn.Module] = list(model.blocks)  # type: ignore[arg-type]
    parameters = list(blocks[0].parameters())
    matrices = sum(parameter.numel() for parameter in parameters if parameter.ndim == 2)
    width = int(model.embed_dim)  # type: ignore[arg-type]
    return Transformer(name, width, len(blocks), matrices, sum(parameter.numel() for parameter in parameters))


@cache
def shares() -> tuple[Share, ...]:
    """The tuned share of every network the paper names, with its number of classes."""
    published_shares: dict[tuple[str, int], float] = {}
    for name in paper.TABLES:
        for column in paper.published_table(name).columns:
            if column.ratio_percent is not None:
                published_shares[column.model, column.classes] = column.ratio_percent
    counted = []
    for (model, classes), published in published_shares.items():
        tuned = "prompts+head" if model in VITS else "norm+head"
        subset = choose(vit(model, classes=classes) if model in VITS else _cnn(model, classes), tuned)
        counted.append(Share(model, classes, subset.numel, subset.ratio, published))
    return tuple(counted)


def parameter_tables(*, level: int = 2) -> str:
    """The analysis in Markdown."""
    mark = "#" * (level + 1)
    parts = [f"{'#' * level} Parameters: what is tuned against what it replaces", ""]
    for name in CNNS:
        parts += [f"{mark} {paper.TITLES[_published(name)]}: convolutions against their BatchNorms", "", *_conv_lines(name), ""]
    parts += [f"{mark} ViT blocks against their prompts", "", *_vit_lines(), ""]
    parts += [f"{mark} Tuned share of all parameters", "", *_share_lines(), ""]
    return "\n".join(parts)


def _conv_lines(name: str) -> list[str]:
    kinds = convolutions(_cnn(_published(name), 10))
    lines = ["| C_i → C_o | K | g | layers | convolution | BatchNorm | C_i·K²/(2g) |", "|" + " --- |" * 7]
    for kind in kinds:
        lines.append(
            f"| {kind.channels_in} → {kind.channels_out} | {kind.kernel} | {kind.groups} | {kind.count} | {kind.conv} | "
            f"{kind.norm} | {kind.conv / kind.norm:g} |"
        )
    conv, norm = (sum(getattr(kind, what) * kind.count for kind in kinds) for what in ("conv", "norm"))
    lines.append(f"| all | | | {sum(kind.count for kind in kinds)} | {conv} | {norm} | {conv / norm:.1f} |")
    return lines


def _vit_lines() -> list[str]:
    lines = [
        f"L_p = {PROMPT_LENGTH}. The paper counts 11E² weights a block; with the output projection of the attention it is 12E².",
        "",
        "| network | E | matrices | 12E² | paper's 11E² | with biases and norms | prompts L_p·E | 12E/L_p | paper's 11E/L_p |",
        "|" + " --- |" * 9,
    ]
    for name in VITS:
        block = transformer(name)
        width = block.width
        lines.append(
            f"| {paper.TITLES[name]} | {width} | {block.matrices} | {12 * width**2} | {11 * width**2} | {block.whole} | "
            f"{block.prompts} | {12 * width / PROMPT_LENGTH:.1f} | {11 * width / PROMPT_LENGTH:.1f} |"
        )
    return lines


def _share_lines() -> list[str]:
    lines = ["| network | classes | tuned | share | paper | |", "|" + " --- |" * 6]
    for share in shares():
        percent = 100 * share.ratio
        verdict = "agrees" if f"{percent:.2f}" == f"{share.published:.2f}" else "**differs**"
        lines.append(
            f"| {paper.TITLES[share.model]} | {share.classes} | {share.tuned} | {percent:.2f} % | {share.published:.2f} % | "
            f"{verdict} |"
        )
    return lines


def _cnn(model: str, classes: int) -> nn.Module:
    name = {_published(known): known for known in CNNS}[model]
    return build_model(name, num_classes=classes)


def _published(name: str) -> str:
    """The paper's name of a network of ours."""
    return name.partition("_x")[0]
