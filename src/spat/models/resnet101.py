"""ResNet-101 in its CIFAR form."""

from __future__ import annotations

from spat.models._heads import HeadKind
from spat.models._plan import Plan, documented
from spat.models._resnet import Bottleneck, ResNet


@documented
def resnet101(
    *,
    classes: int = 10,
    channels: int = 3,
    head: HeadKind = "linear",
    head_bias: bool = False,
    scale: float = 5.0,
    width: float = 1.0,
) -> ResNet:
    """ResNet-101 for CIFAR (42.5M parameters), a source of the paper's transfer attacks."""
    return ResNet(Bottleneck, (3, 4, 23, 3), Plan(classes, channels, head, head_bias, scale, width))
