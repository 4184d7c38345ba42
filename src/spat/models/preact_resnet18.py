"""Pre-activation ResNet-18 in the form of Rice et al. (2020): batch normalisation before the head.

Public checkpoints without that last `bn` (Wong et al. 2020) compute something else and do not load.
"""

from __future__ import annotations

from torch import Tensor, nn, relu

from spat.models._heads import HeadKind
from spat.models._plan import Plan, documented
from spat.models._resnet import PreActivation, conv1x1, conv3x3, global_average, reshapes, stage


class PreActBlock(PreActivation):
    def __init__(self, before: int, after: int, stride: int) -> None:
        super().__init__(before, after, stride)
        needed = reshapes(before, after, stride)
        self.shortcut = nn.Sequential(conv1x1(before, after, stride)) if needed else None

    def forward(self, x: Tensor) -> Tensor:
        return self.join(x, self.shortcut)


class PreActResNet(nn.Module):
    def __init__(self, plan: Plan) -> None:
        super().__init__()
        w1, w2, w3, w4 = (plan.wide(n) for n in (64, 128, 256, 512))
        self.conv1 = conv3x3(plan.channels, w1)
        self.layer1 = stage(PreActBlock, w1, w1, 2, 1)
        self.layer2 = stage(PreActBlock, w1, w2, 2, 2)
        self.layer3 = stage(PreActBlock, w2, w3, 2, 2)
        self.layer4 = stage(PreActBlock, w3, w4, 2, 2)
        self.bn = nn.BatchNorm2d(w4)
        self.linear = plan.make_head(w4)

    def forward(self, x: Tensor) -> Tensor:
        x = self.layer4(self.layer3(self.layer2(self.layer1(self.conv1(x)))))
        logits: Tensor = self.linear(global_average(relu(self.bn(x))))
        return logits


@documented
def preact_resnet18(
    *,
    classes: int = 10,
    channels: int = 3,
    head: HeadKind = "linear",
    head_bias: bool = False,
    scale: float = 5.0,
    width: float = 1.0,
) -> PreActResNet:
    """Pre-activation ResNet-18 for CIFAR (11.2M parameters), as in Rice et al. and AWP."""
    return PreActResNet(Plan(classes, channels, head, head_bias, scale, width))
