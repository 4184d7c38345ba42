"""The graph of a model's forward in eval mode, where it has one that may be rewritten."""

from __future__ import annotations

import operator
from collections.abc import Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, fx, nn

RELUS = {torch.relu, torch.relu_, F.relu, F.relu_, "relu", "relu_"}
NORMS = (nn.BatchNorm2d, nn.SyncBatchNorm)
SUMS = {operator.add, torch.add, "add"}
HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")


class UntraceableError(Exception):
    """Why a model has no graph to rewrite, as half a sentence."""


class Root(nn.Module):
    """Calls the model with images alone, so that its other arguments keep their defaults."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: Tensor) -> Any:
        return self.model(x)


class Tracer(fx.Tracer):
    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        """A module without children is called, not looked into: it may do as it likes."""
        return super().is_leaf_module(m, module_qualified_name) or not any(m.children())


def trace(model: nn.Module) -> fx.GraphModule:
    """The graph of a model in eval mode; it shares the modules, as `model.` and their name."""
    if any(getattr(module, kind) for module in model.modules() for kind in HOOKS):
        raise UntraceableError("it has hooks")
    root = Root(model)
    try:
        graph = Tracer().trace(root)
    except Exception as error:  # whatever the model's own code raises when it meets a proxy
        reason = str(error).partition("\n")[0] or type(error).__name__
        raise UntraceableError(f"its forward cannot be traced: {reason}") from None
    if any("_tensor_constant" in str(node.target) for node in graph.nodes):
        raise UntraceableError("its forward makes tensors of its own, which a graph would freeze")
    return fx.GraphModule(root, graph)


def called(traced: fx.GraphModule, node: Any) -> nn.Module | None:
    """The module that a node calls, if it calls one."""
    is_call = isinstance(node, fx.Node) and node.op == "call_module"
    return traced.get_submodule(str(node.target)) if is_call else None


def sole_calls(traced: fx.GraphModule, *kinds: type) -> Iterator[tuple[fx.Node, nn.Module]]:
    """Nodes that call a module of exactly these types, which is called nowhere else."""
    targets = [node.target for node in traced.graph.nodes if node.op == "call_module"]
    for node in list(traced.graph.nodes):
        module = called(traced, node)
        if type(module) in kinds and module is not None and targets.count(node.target) == 1:
            yield node, module
