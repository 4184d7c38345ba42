"""Architectures, one file each: images in [0, 1] in, logits out."""

from spat.models._answer import answer, check_classifies
from spat.models._build import build_model
from spat.models._convention import adapt_state
from spat.models._heads import CosineHead, cosine_heads, head_scale, renormalise_heads

__all__ = [
    "CosineHead",
    "adapt_state",
    "answer",
    "build_model",
    "check_classifies",
    "cosine_heads",
    "head_scale",
    "renormalise_heads",
]
