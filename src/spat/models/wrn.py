"""Wide residual networks as in TRADES and RobustBench, without their unused `sub_block1`."""

from __future__ import annotations

from torch import Tensor, nn, relu

from spat.errors import UserError
from spat.models._heads import HeadKind
from spat.models._plan import Plan, documented
from spat.models._resnet import PreActivation, conv1x1, conv3x3, global_average, reshapes, stage

PRESETS = {
    "16-4": {"depth": 16, "widen": 4},
    "28-10": {"depth": 28, "widen": 10},
    "34-10": {"depth": 34, "widen": 10},
    "34-20": {"depth": 34, "widen": 20},
}


class WideBlock(PreActivation):
    def __init__(self, before: int, after: int, stride: int) -> None:
        super().__init__(before, after, stride)
        needed = reshapes(before, after, stride)
        self.convShortcut = conv1x1(before, after, stride) if needed else None

    def forward(self, x: Tensor) -> Tensor:
        return self.join(x, self.convShortcut)


class Group(nn.Module):
    """A stage under the name `layer`, as public checkpoints have it."""

    def __init__(self, before: int, after: int, count: int, stride: int) -> None:
        super().__init__()
        self.layer = stage(WideBlock, before, after, count, stride)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.layer(x)
        return out


class WideResNet(nn.Module):
    def __init__(self, depth: int, widen: int, plan: Plan) -> None:
        super().__init__()
        count = (depth - 4) // 6
        stem, w1, w2, w3 = (plan.wide(n) for n in (16, 16 * widen, 32 * widen, 64 * widen))
        self.conv1 = conv3x3(plan.channels, stem)
        self.block1 = Group(stem, w1, count, 1)
        self.block2 = Group(w1, w2, count, 2)
        self.block3 = Group(w2, w3, count, 2)
        self.bn1 = nn.BatchNorm2d(w3)
        self.fc = plan.make_head(w3)
        self.apply(_initialise)

    def forward(self, x: Tensor) -> Tensor:
        x = self.block3(self.block2(self.block1(self.conv1(x))))
        logits: Tensor = self.fc(global_average(relu(self.bn1(x))))
        return logits


def _initialise(part: nn.Module) -> None:
    if isinstance(part, nn.Conv2d):  # N(0, 2 / (k^2 * out channels))
        nn.init.kaiming_normal_(part.weight, mode="fan_out", nonlinearity="relu")
    elif isinstance(part, nn.Linear) and part.bias is not None:
        nn.init.zeros_(part.bias)


@documented
def wrn(
    *,
    depth: int = 34,
    widen: int = 10,
    classes: int = 10,
    channels: int = 3,
    head: HeadKind = "linear",
    head_bias: bool = False,
    scale: float = 5.0,
    width: float = 1.0,
) -> WideResNet:
    """Wide ResNet (34-10: 46.2M parameters), the paper's large network.

    depth: number of layers, 6n + 4
    widen: how many times wider than a plain residual network
    """
    if depth < 10 or depth % 6 != 4:
        near = max(10, depth - (depth - 4) % 6)
        raise UserError(f"depth of wrn must be 6n + 4, got {depth}; try {near} or {near + 6}.")
    if widen < 1:
        raise UserError(f"widen of wrn must be at least 1, got {widen}; WRN-34-10 has 10.")
    return WideResNet(depth, widen, Plan(classes, channels, head, head_bias, scale, width))
