"""Cutting the splits a set does not bring: seeded, stratified by class, whole groups kept together."""

import numpy as np

from imagesets.spec import SplitRule

SPLITS = ("train", "val", "test")


def cut(
    labels: np.ndarray, groups: np.ndarray | None, official: np.ndarray | list[str] | None, rule: SplitRule
) -> dict[str, np.ndarray]:
    """Sorted int64 indices of `train`, `val` and `test`: disjoint, together every image.

    labels, groups: int64 (n,); `official` names the split of each image, or is None where the set brings none. A missing test
    split takes `rule.test` of all images, a missing validation split `rule.val` of the training images, in every class alike.
    A class of two or more units (images, or groups) gives each part at least one and keeps one; a class of one unit stays
    where it is. A function of its arguments alone: it draws nothing but permutations from PCG64(rule.seed).
    """
    part = np.full(len(labels), "train") if official is None else np.asarray(official, dtype="<U5")
    rng = np.random.Generator(np.random.PCG64(rule.seed))
    for name, fraction, whole in (("test", rule.test, SPLITS), ("val", rule.val, ("train",))):
        if not (part == name).any():
            source = np.flatnonzero(np.isin(part, whole))
            part[source[_draw(labels[source], None if groups is None else groups[source], fraction, rng)]] = name
    return {name: np.flatnonzero(part == name) for name in SPLITS}


def _draw(labels: np.ndarray, groups: np.ndarray | None, fraction: float, rng: np.random.Generator) -> np.ndarray:
    """Positions of about `fraction` of each class."""
    counts = np.bincount(labels)
    if groups is not None:
        return _draw_groups(labels, groups, counts, fraction, rng)
    quota = _quota(counts, counts, fraction)
    order = rng.permutation(len(labels))
    order = order[np.argsort(labels[order], kind="stable")]
    rank = np.arange(len(labels)) - np.repeat(np.cumsum(counts) - counts, counts)  # within the class
    return order[rank < np.repeat(quota, counts)]


def _quota(counts: np.ndarray, units: np.ndarray, fraction: float) -> np.ndarray:
    """Images to take from each class: largest remainders, so that the total is the nearest to `fraction` of all."""
    exact = counts * fraction
    quota = np.floor(exact).astype(np.int64)
    short = int(counts.sum() * fraction + 0.5) - int(quota.sum())
    quota[np.argsort(quota - exact, kind="stable")[:short]] += 1
    return np.where(units > 1, np.clip(quota, 1, counts - 1), 0)


def _draw_groups(
    labels: np.ndarray, groups: np.ndarray, counts: np.ndarray, fraction: float, rng: np.random.Generator
) -> np.ndarray:
    """Greedy: in random order, take a group where that brings its classes nearer to their quotas and leaves each a group."""
    _, groups = np.unique(groups, return_inverse=True)
    pairs, sizes = np.unique(groups * len(counts) + labels, return_counts=True)  # each group's classes, with their images
    starts = np.flatnonzero(np.diff(pairs // len(counts), prepend=-1))[1:]
    members = list(zip(np.split(pairs % len(counts), starts), np.split(sizes, starts), strict=True))
    left = np.bincount(pairs % len(counts), minlength=len(counts))  # groups of each class not taken
    need = _quota(counts, left, fraction)
    untouched = need > 0
    taken = np.zeros(len(members), bool)
    order = rng.permutation(len(members))

    def take(group: int) -> None:
        classes, size = members[group]
        taken[group] = True
        untouched[classes] = False
        need[classes] -= size
        left[classes] -= 1

    for group in order:
        classes, size = members[group]
        if np.abs(need[classes] - size).sum() < np.abs(need[classes]).sum() and left[classes].min() > 1:
            take(group)
    for label in np.flatnonzero(untouched):  # every group was too large for the quota: the smallest one
        fits = [g for g in order if label in members[g][0] and not taken[g] and left[members[g][0]].min() > 1]
        if untouched[label] and fits:
            take(min(fits, key=lambda g: members[g][1].sum()))
    return np.flatnonzero(taken[groups])
