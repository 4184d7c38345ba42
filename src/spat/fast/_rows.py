"""Whether an example's logits surely depend on that example alone, so that a batch may be split.

Only what is known to keep rows apart counts: layers of torch that do, elementwise functions, and
reductions, joins and reshapes that leave the first dimension, the examples', alone. Whatever is not
known is computed on the whole batch: right, if not as fast.
"""

from __future__ import annotations

from typing import Any

from torch import fx, nn

NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm)
ACROSS = (nn.RNNBase, nn.Transformer, nn.Softmax2d)  # dimensions of their own, or too many to know
ROOMS = {
    f"torch.nn.modules.{room}"
    for room in (
        "activation",
        "batchnorm",
        "conv",
        "dropout",
        "flatten",
        "instancenorm",
        "linear",
        "normalization",
        "padding",
        "pixelshuffle",
        "pooling",
        "transformer",
        "upsampling",
    )
}
ELEMENTWISE = {
    "abs",
    "add",
    "bfloat16",
    "clamp",
    "contiguous",
    "div",
    "double",
    "elu",
    "exp",
    "float",
    "gelu",
    "getattr",
    "half",
    "hardswish",
    "hardtanh",
    "leaky_relu",
    "log",
    "mul",
    "neg",
    "pow",
    "relu",
    "relu6",
    "sigmoid",
    "silu",
    "size",
    "softplus",
    "sqrt",
    "square",
    "sub",
    "tanh",
    "truediv",
}
WINDOWS = ("avg_pool", "max_pool", "interpolate")  # within an image, in names of functions
REDUCTIONS = {"amax", "log_softmax", "logsumexp", "max", "mean", "normalize", "softmax", "sum"}
JOINS = {"cat", "concat", "flatten", "stack"}


def row_by_row(traced: fx.GraphModule) -> bool:
    return all(_keeps_rows(traced, node) for node in traced.graph.nodes)


def _keeps_rows(traced: fx.GraphModule, node: fx.Node) -> bool:
    if node.op == "call_module":
        return _layer(traced.get_submodule(str(node.target)))
    if node.op in ("call_function", "call_method"):
        return _call(str(getattr(node.target, "__name__", node.target)).rstrip("_"), node)
    return True


def of_torch(module: nn.Module) -> bool:
    """Whether a leaf is a layer of torch, or a user's variant of one."""
    return any(base.__module__.startswith("torch.nn.modules.") for base in _bases(module))


def _bases(module: nn.Module) -> list[type]:
    return [base for base in type(module).__mro__ if base is not nn.Module]


def _layer(module: nn.Module) -> bool:
    if isinstance(module, NORMS):  # without running statistics, eval mode uses the batch's own
        return module.running_mean is not None
    if isinstance(module, nn.MultiheadAttention):
        return bool(module.batch_first)
    if isinstance(module, nn.TransformerEncoderLayer):
        return bool(module.self_attn.batch_first)
    if isinstance(module, nn.Flatten):
        return module.start_dim >= 1
    if isinstance(module, nn.Softmax | nn.LogSoftmax | nn.Softmin | nn.GLU):
        return _inner(module.dim)
    known = any(base.__module__ in ROOMS for base in _bases(module))
    empty = type(module) in (nn.Identity, nn.Sequential)
    return empty or (known and not isinstance(module, ACROSS))


def _call(name: str, node: fx.Node) -> bool:
    if name in REDUCTIONS:
        return _inner(_argument(node, "dim"))
    if name in JOINS:
        return _inner(_argument(node, "start_dim" if name == "flatten" else "dim"))
    if name in ("view", "reshape"):
        first = _argument(node, "shape")
        first = first[0] if isinstance(first, tuple | list) else first
        return first == -1 or isinstance(first, fx.Node)
    if name == "permute":
        first = _argument(node, "dims")
        return bool((first[0] if isinstance(first, tuple | list) else first) == 0)
    if name == "transpose":
        return all(isinstance(d, int) and d >= 1 for d in node.args[1:]) and len(node.args) == 3
    if name == "getitem":
        return _picks_no_row(node)
    return name in ELEMENTWISE or any(word in name for word in WINDOWS)


def _argument(node: fx.Node, key: str) -> Any:
    """What follows the tensor, in its place or by name."""
    return node.args[1] if len(node.args) > 1 else node.kwargs.get(key)


def _inner(dim: Any) -> bool:
    """Whether dimensions are surely others than the first; of two at the end, neither can be it."""
    if isinstance(dim, tuple | list):
        return sorted(dim) == [-2, -1] or (len(dim) > 0 and all(_inner(d) for d in dim))
    return isinstance(dim, int) and (dim >= 1 or dim == -1)


def _picks_no_row(node: fx.Node) -> bool:
    """x[:, ...] of images; x.shape[0] and the outputs of a layer that returns several are whole."""
    source, index = node.args
    if isinstance(index, tuple):
        return index[0] == slice(None)
    assert isinstance(source, fx.Node)
    shape = source.target is getattr and source.args[1] == "shape"
    return shape or source.target == "size" or source.op == "call_module"
