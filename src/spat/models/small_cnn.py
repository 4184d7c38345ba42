"""The MNIST network of TRADES: four convolutions, three fully connected layers, no BatchNorm."""

from __future__ import annotations

from collections import OrderedDict

from torch import Tensor, nn

from spat.models._heads import CosineHead, HeadKind
from spat.models._plan import Plan, check_size, documented

SMALLEST = 16  # pixels: 16 -> 12 -> 6 -> 2 -> 1


class TradesCNN(nn.Module):
    def __init__(self, size: int, plan: Plan) -> None:
        super().__init__()
        side = ((size - 4) // 2 - 4) // 2
        self.feature_extractor = _convolutions(plan.channels)
        self.classifier = _classifier(64 * side * side, plan)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.classifier(self.feature_extractor(x).flatten(1))
        return logits


def _convolutions(channels: int) -> nn.Sequential:
    parts: OrderedDict[str, nn.Module] = OrderedDict(
        conv1=nn.Conv2d(channels, 32, 3),
        relu1=nn.ReLU(),
        conv2=nn.Conv2d(32, 32, 3),
        relu2=nn.ReLU(),
        maxpool1=nn.MaxPool2d(2),
        conv3=nn.Conv2d(32, 64, 3),
        relu3=nn.ReLU(),
        conv4=nn.Conv2d(64, 64, 3),
        relu4=nn.ReLU(),
        maxpool2=nn.MaxPool2d(2),
    )
    for part in parts.values():
        if isinstance(part, nn.Conv2d) and part.bias is not None:
            nn.init.kaiming_normal_(part.weight)
            nn.init.zeros_(part.bias)
    return nn.Sequential(parts)


def _classifier(features: int, plan: Plan) -> nn.Sequential:
    parts: OrderedDict[str, nn.Module] = OrderedDict(
        fc1=nn.Linear(features, 200),
        relu1=nn.ReLU(),
        drop=nn.Dropout(0.5),
        fc2=nn.Linear(200, 200),
        relu2=nn.ReLU(),
        fc3=_head(plan),
    )
    return nn.Sequential(parts)


def _head(plan: Plan) -> nn.Linear:
    head = plan.make_head(200)
    if not isinstance(head, CosineHead):  # rows of zeros have no direction to take a cosine with
        nn.init.zeros_(head.weight)
        nn.init.zeros_(head.bias)
    return head


@documented
def small_cnn(
    *,
    classes: int = 10,
    channels: int = 1,
    size: int = 28,
    head: HeadKind = "linear",
    head_bias: bool = False,
    scale: float = 5.0,
) -> TradesCNN:
    """Small convolutional network of TRADES for MNIST (312k parameters)."""
    check_size("small-cnn", size, SMALLEST)
    return TradesCNN(size, Plan(classes, channels, head, head_bias, scale))
