"""Data sets: images as bytes on the device, one file per data set, verified before first use."""

from spat.data._augment import crop_flip
from spat.data._base import Dataset, Step
from spat.data._images import Images, Splits, carve

__all__ = ["Dataset", "Images", "Splits", "Step", "carve", "crop_flip"]
