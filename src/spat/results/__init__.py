"""Results: what was measured with its interval, where it came from, and a store that only grows."""

from spat.results.files import read_json, write_arrays, write_json, write_text
from spat.results.measure import hardware, measured, provenance
from spat.results.store import load, load_all, save
from spat.statistics import Spread, mcnemar, over_seeds, wilson

__all__ = [
    "Spread",
    "hardware",
    "load",
    "load_all",
    "mcnemar",
    "measured",
    "over_seeds",
    "provenance",
    "read_json",
    "save",
    "wilson",
    "write_arrays",
    "write_json",
    "write_text",
]
