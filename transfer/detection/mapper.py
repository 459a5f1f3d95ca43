"""Detectron2's mapper, which sees the pixels that every other probe sees."""

import copy

import numpy as np
import torch
from detectron2.data import DatasetMapper
from detectron2.data import transforms as T
from numpy import ndarray

from imagesets.decode import decode


class Mapper(DatasetMapper):
    """A record of a data set -> what a model takes, for training and for testing.

    Detectron2's own reader clips 16-bit PNG, drops transparency and shows what colours it hid; the encoder would be given other
    pixels here than by its other probes.
    """

    def __call__(self, record: dict) -> dict:
        """Raises BadImage with the file's name, Unavailable where it is gone."""
        record = copy.deepcopy(record)  # annotations are transformed in place
        given = T.AugInput(read(record["file_name"], self.image_format))
        transforms = self.augmentations(given)
        record["image"] = torch.from_numpy(np.ascontiguousarray(given.image.transpose(2, 0, 1)))
        if self.is_train:
            self._transform_annotations(record, transforms, given.image.shape[:2])
        else:
            del record["annotations"]
        return record


def read(file: str, colours: str) -> ndarray:
    """uint8 H x W x 3 of an image, in the order RGB or BGR."""
    image = decode(file)
    return image if colours == "RGB" else image[:, :, ::-1]
