"""Accuracy of class scores, in percent, with 95% bootstrap intervals over the test images."""

import numpy as np


def evaluate(scores, y, n_classes, *, groups=None, seed=0, resamples=1000):
    own = scores[np.arange(len(y)), y]
    rank = (scores >= own[:, None]).sum(1)
    out = {}
    rng = np.random.default_rng(seed)
    counts = rng.multinomial(len(y), np.full(len(y), 1 / len(y)), size=resamples)
    onehot = np.eye(n_classes)[y]
    for name, right in (("top1", rank <= 1), ("top5", rank <= 5), ("mean_per_class", rank <= 1)):
        if name == "top5" and n_classes <= 5:
            continue
        if name == "mean_per_class":
            with np.errstate(all="ignore"):
                per = np.nanmean((counts * right) @ onehot / (counts @ onehot), 1)
                value = np.nanmean((right @ onehot) / onehot.sum(0))
        else:
            per, value = counts @ right / len(y), right.mean()
        lo, hi = np.percentile(per, [2.5, 97.5])
        out[name] = {"value": 100 * float(value), "ci_low": 100 * float(lo), "ci_high": 100 * float(hi), "n": len(y)}
    return out
