"""Images to classify: the embedded digits, CIFAR-10, and folders of images."""

from train.data.augmentation import flip_and_shift as augment
from train.data.augmentation import normalise
from train.data.images.images import ImageBatch, ImageData, load, prepare
from train.data.images.sources import IMAGES, ImageConfig

__all__ = ["IMAGES", "ImageBatch", "ImageConfig", "ImageData", "augment", "load", "normalise", "prepare"]
