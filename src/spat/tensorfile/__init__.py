"""Named tensors in one file, written whole and checked when read; the large ones row by row."""

from spat.tensorfile._large import Filling, Rows, opened
from spat.tensorfile._whole import digest, read, write

__all__ = ["Filling", "Rows", "digest", "opened", "read", "write"]
