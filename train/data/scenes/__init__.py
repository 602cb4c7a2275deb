"""Scenes to segment: drawn shapes, CamVid and Cityscapes."""

from train.data.augmentation import flip_and_crop as augment
from train.data.augmentation import normalise
from train.data.pictures import NOT_COUNTED
from train.data.scenes.scenes import SceneBatch, SceneData, load, prepare
from train.data.scenes.sources import SCENES, SceneConfig

__all__ = ["NOT_COUNTED", "SCENES", "SceneBatch", "SceneConfig", "SceneData", "augment", "load", "normalise", "prepare"]
