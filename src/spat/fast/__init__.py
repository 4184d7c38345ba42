"""The fast way to many gradients: an evaluation copy of a model, and blocks of a batch."""

from spat.fast._blocks import Crew, InBlocks, Split, crew, one_by_one, run_blocks, split, threads
from spat.fast._compiled import Compile
from spat.fast._deep import deep_small_maps
from spat.fast._hardware import has_fast_bfloat16
from spat.fast.rowwise import Exact, rowwise
from spat.fast.surrogate import Precision, Surrogate, surrogate, uses_bfloat16

__all__ = [
    "Compile",
    "Crew",
    "Exact",
    "InBlocks",
    "Precision",
    "Split",
    "Surrogate",
    "crew",
    "deep_small_maps",
    "has_fast_bfloat16",
    "one_by_one",
    "rowwise",
    "run_blocks",
    "split",
    "surrogate",
    "threads",
    "uses_bfloat16",
]
