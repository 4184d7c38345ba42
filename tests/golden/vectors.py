"""The authors' own numbers for the defences, as tensors (defence_vectors.json says where from)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch

FILE = json.loads((Path(__file__).parent / "defence_vectors.json").read_text())
CASES: dict[str, dict[str, Any]] = {case["id"]: case for case in FILE["cases"]}
INTEGER = ("labels", "kappa", "second_class", "final_prediction")


def tensor(value: Any, dtype: torch.dtype = torch.float64) -> torch.Tensor:
    """Numbers, nested lists of them, and the strings inf, -inf and nan."""

    def number(v: Any) -> Any:
        return [number(x) for x in v] if isinstance(v, list) else float(v)

    return torch.tensor(number(value), dtype=dtype)


def inputs(case: dict[str, Any], dtype: torch.dtype = torch.float64) -> dict[str, Any]:
    """Arrays as tensors, labels and counts as integers, plain numbers as they are."""
    return {
        key: tensor(value, torch.int64 if key in INTEGER else dtype)
        if isinstance(value, list)
        else (float(value) if value in ("inf", "-inf") else value)
        for key, value in case["inputs"].items()
    }


def starting(*prefixes: str) -> list[str]:
    return [name for name in CASES if name.startswith(prefixes)]
