"""kNN accuracy over the epochs, a line for each run: python plot.py RUNS OUT.png (needs matplotlib)."""

import json
import sys
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt

COLOURS = {"ir": "#7f8fa6", "iring": "#0b6e99", "moco": "#d8a47f", "mocoring": "#b5451b"}


def main(runs: Path, out: Path) -> None:
    figure, axes = plt.subplots(figsize=(7, 4.2), layout="constrained")
    for folder in sorted(runs.iterdir()):
        method = folder.name.rpartition("_")[0]
        lines = [json.loads(line) for line in (folder / "log.jsonl").read_text().splitlines()]
        points = [(line["epoch"], 100 * line["knn"]) for line in lines if "knn" in line]
        seen = method in axes.get_legend_handles_labels()[1]
        axes.plot(*zip(*points, strict=True), color=COLOURS[method], lw=1.8, label=None if seen else method)
    axes.set(xlabel="epoch", ylabel="kNN accuracy on validation images, %", xlim=(0, None))
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(alpha=0.25)
    axes.legend(frameon=False)
    figure.savefig(out, dpi=150)


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
