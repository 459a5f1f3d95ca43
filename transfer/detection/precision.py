"""Average precision and recall of detections under weights of their images: all images once, and every resample of them.

A resample of the images with replacement is a whole number for each image. Matches never change with it: an image's detections
are matched to its own objects alone. So each resample's precision follows from weighted cumulative sums over the same ranking.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from scipy.sparse import csr_array

from transfer.detection.matching import IGNORED, TRUE, Matches

TOGETHER = 128  # resamples: a block of sums then fits the cache
EPS = np.spacing(1)  # as COCO's own code divides


@dataclass(frozen=True, eq=False)
class Curves:
    """For T thresholds, K categories and R weightings; NaN where a category has no object."""

    precision: np.ndarray  # (T, K, R), the mean over the recalls of the grid
    recall: dict[int, np.ndarray]  # (T, K, R) for each cut


def curves(matches: Matches, weights: np.ndarray, n_categories: int, *, grid: np.ndarray, cuts: list[int]) -> Curves:
    """weights (I, R): how often each image counts. grid: recalls, of which 0 is the first. cuts: detections of a category and
    an image that count for recall.

    Equal to evaluating a set that holds every image as often as its weight says, as long as no two detections of one category
    and one image have the same score: the copies of such two would alternate in the ranking.
    """
    shape = matches.outcome.shape[1], n_categories, weights.shape[1]
    precision = np.full(shape, np.nan)
    recall = {cut: np.full(shape, np.nan) for cut in cuts}
    plans = list(_plans(matches, n_categories, len(weights)))
    for start in range(0, weights.shape[1], TOGETHER):
        part = slice(start, start + TOGETHER)
        drawn = np.ascontiguousarray(weights[:, part], dtype=float)
        for plan in plans:
            total = drawn[plan.wanted].sum(0)
            values, recalls = plan.evaluate(drawn, np.maximum(total, 1), grid, cuts)
            present = total > 0
            precision[:, plan.category, part] = np.where(present, values, np.nan)
            for cut in cuts:
                recall[cut][:, plan.category, part] = np.where(present, recalls[cut], np.nan)
    return Curves(precision, recall)


@dataclass(frozen=True, eq=False)
class _Plan:
    """One category. Precision can only be largest at a step: a detection that is a true positive at some threshold."""

    category: int
    wanted: np.ndarray  # (P,) image of each object
    image: np.ndarray  # (S,) of each step
    rank: np.ndarray  # (S,)
    true: np.ndarray  # bool (S, T)
    passed: csr_array  # (S, I): detections from the step before up to this one that count at every threshold
    extra: list[tuple[np.ndarray, np.ndarray]]  # for each threshold, of those that count at it but not at all: image, step

    def evaluate(
        self, drawn: np.ndarray, total: np.ndarray, grid: np.ndarray, cuts: list[int]
    ) -> tuple[np.ndarray, dict[int, np.ndarray]]:
        """drawn (I, C), total (C,) objects -> precision (T, C), recall (T, C) for each cut."""
        columns = np.arange(len(total))
        objects = np.arange(total.max() + 1)[:, None]
        reached = np.searchsorted(grid, objects / total, side="right").ravel()  # recalls of the grid that so many objects reach
        steps = drawn[self.image]
        passed = np.cumsum(self.passed @ drawn, 0)
        precision = np.empty((self.true.shape[1], len(total)))
        recall = {cut: np.empty_like(precision) for cut in cuts}
        for t, (image, step) in enumerate(self.extra):
            at = np.flatnonzero(self.true[:, t])
            true = np.cumsum(steps[at], 0)
            for cut, share in recall.items():
                early = self.rank[at] < cut
                share[t] = (true[-1] if len(at) and early.all() else steps[at[early]].sum(0)) / total
            counted = passed[at] + EPS
            if len(image):
                before = np.searchsorted(step, at, side="right")
                counted[before > 0] += np.cumsum(drawn[image], 0)[before[before > 0] - 1]
            height = np.divide(true, counted, out=counted)
            highest = np.maximum.accumulate(height[::-1], 0)[::-1]  # at this recall or any larger one
            places = reached.take(true.astype(np.intp) * len(total) + columns)
            precision[t] = (highest * np.diff(places, axis=0, prepend=0)).sum(0) / len(grid)
        return precision, recall


def _plans(matches: Matches, n_categories: int, n_images: int) -> Iterator[_Plan]:
    edges = np.searchsorted(matches.category, np.arange(n_categories + 1))
    order = np.argsort(matches.wanted_category, kind="stable")
    borders = np.searchsorted(matches.wanted_category[order], np.arange(n_categories + 1))
    for category in range(n_categories):
        wanted = matches.wanted_image[order[borders[category] : borders[category + 1]]]
        if not len(wanted):
            continue
        rows = slice(edges[category], edges[category + 1])
        image, rank, outcome = matches.image[rows], matches.rank[rows], matches.outcome[rows]
        true, counted = outcome == TRUE, outcome != IGNORED
        steps = np.flatnonzero(true.any(1))
        step = np.searchsorted(steps, np.arange(len(image)))  # the next step, which counts the detection too

        always, inside = counted.all(1), step < len(steps)  # nothing after the last step matters
        sometimes = counted & (inside & ~always)[:, None]
        chosen = always & inside
        passed = csr_array((np.ones(chosen.sum()), (step[chosen], image[chosen])), shape=(len(steps), n_images))
        extra = [(image[column], step[column]) for column in sometimes.T]
        yield _Plan(category, wanted, image[steps], rank[steps], true[steps], passed, extra)
