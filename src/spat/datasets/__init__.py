"""Data sets: images as bytes on the device, one file per data set, verified before first use."""

from spat.datasets._augment import crop_flip
from spat.datasets._base import Dataset, Step
from spat.datasets._images import Images, Splits, carve
from spat.datasets._shrink import shrunk

__all__ = ["Dataset", "Images", "Splits", "Step", "carve", "crop_flip", "shrunk"]
