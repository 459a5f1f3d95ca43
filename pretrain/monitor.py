"""How good the features are while they are trained: weighted kNN on images that are not measured later."""

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import interpolate

from pretrain.data import Images
from pretrain.diagnostics import knn_accuracy

BANK, QUERIES, BATCH = 20_000, 5_000, 256  # enough for a share of a percent


class Monitor:
    """Validation images asked for their nearest training images. `data` holds both; the test split is never looked at."""

    def __init__(
        self, data: Images, train: np.ndarray, val: np.ndarray, labels: Tensor, crop: float, size: int, mean: Tensor, std: Tensor
    ) -> None:
        self.data, self.labels, self.size, self.mean, self.std = data, labels, size, mean, std
        self.crop = max(1, round(crop * data.size))  # pixels in the middle of an image that an encoder will see
        self.bank, self.queries = (_some(part, most) for part, most in ((train, BANK), (val, QUERIES)))

    @torch.no_grad()
    def accuracy(self, encoder: torch.nn.Module) -> float:
        """0..1."""
        encoder.eval()
        bank, queries = (self._features(encoder, part) for part in (self.bank, self.queries))
        encoder.train()
        k = min(200, max(10, len(bank) // 100))  # 200 of 50,000 in Wu et al.; of few images as many would be whole classes
        return knn_accuracy(bank, self.labels[self.bank], queries, self.labels[self.queries], k)

    def _features(self, encoder: torch.nn.Module, positions: Tensor) -> Tensor:
        waited = self.data.waited
        edge = (self.data.size - self.crop) // 2
        middle = slice(edge, edge + self.crop)
        features = []
        for _, pixels in self.data.batches(positions.split(BATCH)):
            x = pixels[:, :, middle, middle].float() / 255
            x = interpolate(x, (self.size, self.size), mode="bilinear", antialias=True)
            features.append(encoder.features(x.to(memory_format=torch.channels_last), self.mean, self.std).float())
        self.data.waited = waited  # the training did not
        return torch.cat(features)


def _some(positions: np.ndarray, most: int) -> Tensor:
    if len(positions) > most:
        positions = np.sort(np.random.default_rng(0).choice(positions, most, replace=False))
    return torch.from_numpy(positions)
