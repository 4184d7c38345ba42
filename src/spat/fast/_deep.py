"""A batch as one image with a depth: [n, c, h, w] becomes [1, c, h, w, n], channels-last.

A convolution whose kernel is 1 deep computes the same. But the kernels of oneDNN go along the last
dimension, and all images of the batch now lie there, side by side: a map of 4 x 4 pixels no longer
reads all weights again for each image, and taps that would fall on the padding are left out for
whole rows of numbers. At 4 x 4 pixels that nearly halves the time.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch.nn.functional as F
from torch import Tensor, fx, nn

from spat.fast._graph import RELUS, SUMS, called
from spat.fast._hardware import has_wide_vectors
from spat.fast._layers import Affine, FoldedConv, channels_last
from spat.fast._pool import max_pool

ENOUGH = 16  # images; fewer do not fill the vectors
MAP = 16  # pixels of a map that is worth laying for one convolution alone
FEW = 4  # channels of an image, which cost little to lay anew
ELEMENTWISE = {
    Affine,
    *(nn.ReLU, nn.ReLU6, nn.LeakyReLU, nn.ELU, nn.GELU, nn.SiLU),
    *(nn.Identity, nn.Dropout, nn.Sequential),  # a leaf of a graph: an empty one
}


def deep(x: Tensor) -> Tensor:
    if x.ndim != 4 or len(x) < ENOUGH:
        return x
    return channels_last(x.permute(1, 2, 3, 0)[None])


def flat(x: Tensor) -> Tensor:
    return channels_last(x[0].permute(3, 0, 1, 2)) if x.ndim == 5 else x


@contextmanager
def deep_small_maps(model: nn.Module) -> Iterator[None]:
    """In the model itself, in bfloat16: its convolutions of small maps, one by one.

    There the gradient of the weights takes half the time too, and laying the maps costs little.
    """
    convs = [module for module in model.modules() if type(module) is nn.Conv2d]
    chosen = [
        conv
        for conv in convs
        if conv.groups == 1 and conv.padding_mode == "zeros" and not isinstance(conv.padding, str)
    ]
    if not has_wide_vectors():
        chosen = []
    for conv in chosen:
        vars(conv)["_conv_forward"] = partial(_forward, conv)
    try:
        yield
    finally:
        for conv in chosen:
            del vars(conv)["_conv_forward"]


def _forward(conv: Any, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    (h, w), (down, right) = x.shape[-2:], conv.stride
    if x.ndim != 4 or len(x) < ENOUGH or h * w > MAP * down * right:
        out: Tensor = nn.Conv2d._conv_forward(conv, x, weight, bias)
        return out
    places = zip((conv.stride, conv.padding, conv.dilation), (1, 0, 1), strict=True)
    stride, padding, dilation = ((*place, apart) for place, apart in places)
    return flat(F.conv3d(deep(x), weight.unsqueeze(-1), bias, stride, padding, dilation))


def lay_deep(traced: fx.GraphModule) -> None:
    """From the first convolution on, for as long as all is known to take it.

    Only where that was measured to be faster: other processors may have no kernel for depth.
    """
    if not has_wide_vectors():
        return
    laid = set[fx.Node]()
    for node in list(traced.graph.nodes):
        if _begins(traced, node, laid):
            with traced.graph.inserting_before(node):
                node.update_arg(0, traced.graph.call_function(deep, (node.args[0],)))
            laid.add(node)
        elif node.all_input_nodes and laid.issuperset(node.all_input_nodes):
            laid |= _continued(traced, node)
    for node in laid:
        _lay_flat(traced.graph, node, laid)


def _begins(traced: fx.GraphModule, node: fx.Node, laid: set[fx.Node]) -> bool:
    """A convolution of images, which cost little to lay anew."""
    layer = called(traced, node)
    if not isinstance(layer, FoldedConv) or not layer.takes_depth:
        return False
    return layer.weight.shape[1] <= FEW and laid.issuperset(node.all_input_nodes[1:])


def _continued(traced: fx.GraphModule, node: fx.Node) -> set[fx.Node]:
    """The node that takes its place, or itself; none if it knows nothing of depth."""
    layer = called(traced, node)
    if type(layer) is nn.MaxPool2d and not layer.return_indices:
        sides = (layer.kernel_size, layer.stride, layer.padding, layer.dilation)
        with traced.graph.inserting_after(node):
            pooled = traced.graph.call_function(max_pool, (*node.args, *sides, layer.ceil_mode))
        node.replace_all_uses_with(pooled)
        traced.graph.erase_node(node)
        return {pooled}
    if node.target is F.max_pool2d and not node.kwargs.get("return_indices"):
        node.target = max_pool
        return {node}
    if isinstance(layer, FoldedConv):
        return {node} if layer.takes_depth else set()
    plain = node.target in RELUS or (node.target in SUMS and len(node.all_input_nodes) == 2)
    return {node} if plain or type(layer) in ELEMENTWISE else set()


def _lay_flat(graph: fx.Graph, node: fx.Node, laid: set[fx.Node]) -> None:
    """What reads it without knowing of depth."""
    readers = [user for user in node.users if user not in laid]
    if readers:
        with graph.inserting_after(node):
            plain = graph.call_function(flat, (node,))
        for user in readers:
            user.replace_input_with(node, plain)
