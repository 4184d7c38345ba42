"""ResNet-18 in its CIFAR form: what TRADES, MART, GAIRAT, SEAT and SPAT train."""

from __future__ import annotations

from spat.models._heads import HeadKind
from spat.models._plan import Plan, documented
from spat.models._resnet import BasicBlock, ResNet


@documented
def resnet18(
    *,
    classes: int = 10,
    channels: int = 3,
    head: HeadKind = "linear",
    head_bias: bool = False,
    scale: float = 5.0,
    width: float = 1.0,
) -> ResNet:
    """ResNet-18 for CIFAR (11.2M parameters), the paper's main network."""
    return ResNet(BasicBlock, (2, 2, 2, 2), Plan(classes, channels, head, head_bias, scale, width))
