"""ResNet-34 in its CIFAR form."""

from __future__ import annotations

from spat.models._heads import HeadKind
from spat.models._plan import Plan, documented
from spat.models._resnet import BasicBlock, ResNet


@documented
def resnet34(
    *,
    classes: int = 10,
    channels: int = 3,
    head: HeadKind = "linear",
    head_bias: bool = False,
    scale: float = 5.0,
    width: float = 1.0,
) -> ResNet:
    """ResNet-34 for CIFAR (21.3M parameters)."""
    return ResNet(BasicBlock, (3, 4, 6, 3), Plan(classes, channels, head, head_bias, scale, width))
