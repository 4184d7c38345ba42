"""LeNet-5 in its modern form: ReLU and max-pool, a first convolution padded to keep 28x28."""

from __future__ import annotations

from torch import Tensor, nn, relu
from torch.nn.functional import max_pool2d

from spat.models._heads import HeadKind
from spat.models._plan import Plan, check_size, documented

SMALLEST = 12  # pixels: 12 -> 6 -> 2 -> 1


class LeNet(nn.Module):
    def __init__(self, size: int, plan: Plan) -> None:
        super().__init__()
        side = (size // 2 - 4) // 2
        self.conv1 = nn.Conv2d(plan.channels, 6, 5, padding=2)
        self.conv2 = nn.Conv2d(6, 16, 5)
        self.fc1 = nn.Linear(16 * side * side, 120)
        self.fc2 = nn.Linear(120, 84)
        self.fc3 = plan.make_head(84)

    def forward(self, x: Tensor) -> Tensor:
        x = max_pool2d(relu(self.conv1(x)), 2)
        x = max_pool2d(relu(self.conv2(x)), 2).flatten(1)
        x = relu(self.fc2(relu(self.fc1(x))))
        logits: Tensor = self.fc3(x)
        return logits


@documented
def lenet5(
    *,
    classes: int = 10,
    channels: int = 1,
    size: int = 28,
    head: HeadKind = "linear",
    head_bias: bool = False,
    scale: float = 5.0,
) -> LeNet:
    """LeNet-5 for MNIST (61,706 parameters), a source of the paper's transfer attacks."""
    check_size("lenet5", size, SMALLEST)
    return LeNet(size, Plan(classes, channels, head, head_bias, scale))
