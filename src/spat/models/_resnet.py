"""The parts of the residual networks, named as in public checkpoints."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor, nn, relu

from spat.models._plan import Plan

Block = Callable[[int, int, int], nn.Module]


def conv3x3(before: int, after: int, stride: int = 1) -> nn.Conv2d:
    return nn.Conv2d(before, after, 3, stride=stride, padding=1, bias=False)


def conv1x1(before: int, after: int, stride: int = 1) -> nn.Conv2d:
    return nn.Conv2d(before, after, 1, stride=stride, bias=False)


def global_average(x: Tensor) -> Tensor:
    """One number a channel, for images of any size."""
    return x.mean((2, 3))


def reshapes(before: int, after: int, stride: int) -> bool:
    """Whether a block's output no longer fits its input, so that the shortcut needs weights."""
    return stride != 1 or before != after


def projection(before: int, after: int, stride: int) -> nn.Sequential:
    """The shortcut of a post-activation block: empty where the shape does not change."""
    if not reshapes(before, after, stride):
        return nn.Sequential()
    return nn.Sequential(conv1x1(before, after, stride), nn.BatchNorm2d(after))


def stage(block: Block, before: int, after: int, count: int, stride: int) -> nn.Sequential:
    """`count` blocks, of which the first changes the channels and the resolution."""
    rest = [block(after, after, 1) for _ in range(count - 1)]
    return nn.Sequential(block(before, after, stride), *rest)


class BasicBlock(nn.Module):
    """Two 3x3 convolutions around a shortcut."""

    expansion = 1

    def __init__(self, before: int, after: int, stride: int) -> None:
        super().__init__()
        self.conv1 = conv3x3(before, after, stride)
        self.bn1 = nn.BatchNorm2d(after)
        self.conv2 = conv3x3(after, after)
        self.bn2 = nn.BatchNorm2d(after)
        self.shortcut = projection(before, after, stride)

    def forward(self, x: Tensor) -> Tensor:
        out = relu(self.bn1(self.conv1(x)))
        out = self.bn2(self.conv2(out))
        return relu(out + self.shortcut(x))


class Bottleneck(nn.Module):
    """1x1, 3x3 and 1x1 convolutions around a shortcut; the middle has a quarter of the channels."""

    expansion = 4

    def __init__(self, before: int, after: int, stride: int) -> None:
        super().__init__()
        middle = after // self.expansion
        self.conv1 = conv1x1(before, middle)
        self.bn1 = nn.BatchNorm2d(middle)
        self.conv2 = conv3x3(middle, middle, stride)
        self.bn2 = nn.BatchNorm2d(middle)
        self.conv3 = conv1x1(middle, after)
        self.bn3 = nn.BatchNorm2d(after)
        self.shortcut = projection(before, after, stride)

    def forward(self, x: Tensor) -> Tensor:
        out = relu(self.bn1(self.conv1(x)))
        out = relu(self.bn2(self.conv2(out)))
        out = self.bn3(self.conv3(out))
        return relu(out + self.shortcut(x))


class PreActivation(nn.Module):
    """BN, ReLU and a 3x3 convolution, twice; the shortcut is the heir's, who names it."""

    def __init__(self, before: int, after: int, stride: int) -> None:
        super().__init__()
        self.bn1 = nn.BatchNorm2d(before)
        self.conv1 = conv3x3(before, after, stride)
        self.bn2 = nn.BatchNorm2d(after)
        self.conv2 = conv3x3(after, after)

    def join(self, x: Tensor, shortcut: nn.Module | None) -> Tensor:
        """A shortcut with weights starts at the activated input, one without at the input."""
        active = relu(self.bn1(x))
        out: Tensor = self.conv2(relu(self.bn2(self.conv1(active))))
        return out + (x if shortcut is None else shortcut(active))


class ResNet(nn.Module):
    """The CIFAR form: a 3x3 stem, no max-pool, four stages, global average."""

    def __init__(
        self, block: type[BasicBlock] | type[Bottleneck], counts: tuple[int, ...], plan: Plan
    ) -> None:
        super().__init__()
        stem = plan.wide(64)
        w1, w2, w3, w4 = (plan.wide(n) * block.expansion for n in (64, 128, 256, 512))
        self.conv1 = conv3x3(plan.channels, stem)
        self.bn1 = nn.BatchNorm2d(stem)
        self.layer1 = stage(block, stem, w1, counts[0], 1)
        self.layer2 = stage(block, w1, w2, counts[1], 2)
        self.layer3 = stage(block, w2, w3, counts[2], 2)
        self.layer4 = stage(block, w3, w4, counts[3], 2)
        self.linear = plan.make_head(w4)

    def forward(self, x: Tensor) -> Tensor:
        x = relu(self.bn1(self.conv1(x)))
        x = self.layer4(self.layer3(self.layer2(self.layer1(x))))
        logits: Tensor = self.linear(global_average(x))
        return logits
