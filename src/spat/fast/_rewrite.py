"""Rewriting a traced model into a faster one that computes the same.

reshape   a view, which needs another layout, becomes a reshape
replace   a BatchNorm folds into the convolution before it, or becomes one multiply-add
lower     weights and activations in bfloat16, apart from what needs or expects float32
pool      relu then max-pool becomes max-pool then relu, of a quarter of the elements: values and
          gradients are the same in both orders, also where elements tie
fuse      a ReLU, and a sum before it, are computed while a convolution writes its output
in place  a ReLU overwrites its input where nobody else reads that
deep      the images of a batch lie side by side in a dimension of their own
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, fx, nn

from spat.fast._deep import lay_deep
from spat.fast._fold import Layer
from spat.fast._graph import NORMS, RELUS, SUMS, called, sole_calls
from spat.fast._layers import Affine, FoldedConv, InputConv
from spat.fast._rows import of_torch

# Layers that do not keep their output for the backward pass, so that it may be overwritten.
FORGETFUL = (nn.Conv2d, nn.BatchNorm2d, nn.Linear, nn.MaxPool2d, Affine)


def reshape(traced: fx.GraphModule) -> bool:
    """Let views see images that lie channels-last; whether there was one."""
    views = [n for n in traced.graph.nodes if n.op == "call_method" and n.target == "view"]
    for node in views:
        node.target = "reshape"
    return bool(views)


def replace(
    traced: fx.GraphModule, like: Tensor, *, fold: bool, fuse: bool
) -> tuple[list[Layer], str]:
    """Put our layers in, still empty, and say how many; `like` has their type and device.

    fuse: whether convolutions may compute what follows them, or are left to a compiler
    """
    convs = {node for node, conv in sole_calls(traced, nn.Conv2d) if _plain(conv)}
    norms = list(sole_calls(traced, *NORMS)) if fold else []
    layers = []
    for node, bn in norms:
        before = node.args[0]
        if bn.running_mean is None:
            continue
        if before in convs and isinstance(before, fx.Node) and len(before.users) == 1:
            convs.remove(before)
            layers.append(_put_conv(traced, before, like, fuse, _name(node)))
            node.replace_all_uses_with(before)
            traced.graph.erase_node(node)
        elif isinstance(bn, nn.BatchNorm2d):
            layers.append(_put_affine(traced, node, bn, like))
    folded = sum(layer.conv is not None for layer in layers)
    note = f"{folded} of {len(norms)} BatchNorms folded into convolutions." if norms else ""
    others = [node for node in convs if like.device.type == "cpu"]
    return layers + [_put_conv(traced, node, like, fuse) for node in others], note


def _put_conv(
    traced: fx.GraphModule, node: fx.Node, like: Tensor, fuse: bool, bn: str | None = None
) -> Layer:
    conv = called(traced, node)
    assert isinstance(conv, nn.Conv2d)
    kind = InputConv if InputConv.suits(conv) else FoldedConv
    target = kind(conv, like, fuse=fuse)
    traced.add_submodule(str(node.target), target)
    return Layer(target, conv=_name(node), bn=bn)


def _put_affine(traced: fx.GraphModule, node: fx.Node, bn: nn.BatchNorm2d, like: Tensor) -> Layer:
    target = Affine(bn.num_features, like)
    traced.add_submodule(str(node.target), target)
    return Layer(target, bn=_name(node))


def _name(node: fx.Node) -> str:
    return str(node.target).removeprefix("model.")


def _plain(conv: nn.Module) -> bool:
    return conv.padding_mode == "zeros" and not isinstance(conv.padding, str)


def lower(traced: fx.GraphModule) -> None:
    """bfloat16 throughout, but for the last linear layer and for layers that are not torch's.

    Attacks live on small differences of logits, and other people's layers may count on float32.
    """
    graph = traced.graph
    traced.to(torch.bfloat16)
    for node in list(graph.nodes):
        module = called(traced, node)
        last = isinstance(module, nn.Linear) and all(user.op == "output" for user in node.users)
        exact = module is not None and (last or not of_torch(module))
        if module is not None and exact:
            module.float()
            with graph.inserting_before(node):
                node.args = fx.map_arg(node.args, partial(_cast, graph, "float"))
        if node.op == "placeholder" or (exact and not last):
            _lower_output(graph, node)


def _cast(graph: fx.Graph, to: str, node: fx.Node) -> fx.Node:
    return graph.call_method(to, (node,))


def _lower_output(graph: fx.Graph, node: fx.Node) -> None:
    with graph.inserting_after(node):
        low = _cast(graph, "bfloat16", node)
    node.replace_all_uses_with(low, delete_user_cb=lambda user: user is not low)


def tidy(traced: fx.GraphModule) -> None:
    """Order and overwrite what is left, and drop what nobody uses."""
    _pool_first(traced)
    _fuse_relu(traced)
    relu_in_place(traced)
    lay_deep(traced)
    traced.graph.eliminate_dead_code()
    traced.delete_all_unused_submodules()
    traced.recompile()


def _pool_first(traced: fx.GraphModule) -> None:
    graph = traced.graph
    for pool in list(graph.nodes):
        relu = pool.args[0] if _is_max_pool(traced, pool) else None
        if not isinstance(relu, fx.Node) or not _is_relu(traced, relu) or len(relu.users) > 1:
            continue
        pool.replace_input_with(relu, relu.args[0])
        graph.erase_node(relu)
        with graph.inserting_after(pool):
            after = graph.call_function(torch.relu, (pool,))
        pool.replace_all_uses_with(after, delete_user_cb=lambda user, own=after: user is not own)


def _fuse_relu(traced: fx.GraphModule) -> None:
    """relu(conv(x)) and relu(conv(x) + other) become one layer."""
    graph = traced.graph
    for relu in list(graph.nodes):
        source = relu.args[0] if _is_relu(traced, relu) else None
        if not isinstance(source, fx.Node) or len(source.users) > 1 or source.kwargs:
            continue
        parts: list[Any] = list(source.args) if source.target in SUMS else [source]
        conv = next((part for part in parts if _fuses(traced, part)), None)
        if conv is None or not all(isinstance(part, fx.Node) for part in parts):
            continue
        parts.remove(conv)
        with graph.inserting_after(relu):
            fused = graph.call_module(str(conv.target), (conv.args[0], *parts))
        relu.replace_all_uses_with(fused)
        for node in dict.fromkeys((relu, source, conv)):
            graph.erase_node(node)
        layer = called(traced, fused)
        assert isinstance(layer, FoldedConv)
        layer.relu = True


def _fuses(traced: fx.GraphModule, node: Any) -> bool:
    layer = called(traced, node)
    return isinstance(layer, FoldedConv) and layer.fuses and len(node.users) == 1


def relu_in_place(traced: fx.GraphModule) -> None:
    """A ReLU overwrites what nobody else reads, neither forwards nor for a gradient."""
    graph = traced.graph
    for relu in list(graph.nodes):
        source = relu.args[0] if _is_relu(traced, relu) else None
        if isinstance(source, fx.Node) and len(source.users) == 1 and _forgets(traced, source):
            with graph.inserting_after(relu):
                relu.replace_all_uses_with(graph.call_function(torch.relu_, (source,)))
            graph.erase_node(relu)


def _forgets(traced: fx.GraphModule, node: fx.Node) -> bool:
    """Whether a node makes a tensor of its own that no gradient will ask for."""
    layer = called(traced, node)
    forgets = isinstance(layer, FoldedConv) and not layer.relu
    return forgets or node.target in SUMS or type(layer) in FORGETFUL or _is_max_pool(traced, node)


def _is_relu(traced: fx.GraphModule, node: fx.Node) -> bool:
    return node.target in RELUS or type(called(traced, node)) is nn.ReLU


def _is_max_pool(traced: fx.GraphModule, node: fx.Node) -> bool:
    module: Any = called(traced, node)
    return node.target is F.max_pool2d or (
        type(module) is nn.MaxPool2d and not module.return_indices
    )
