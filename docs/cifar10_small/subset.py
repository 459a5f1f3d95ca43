"""CSV files that name a part of CIFAR-10 (JPEG): the first n training images of each class and 200 of test.

python subset.py DIR with DIR/{train,test}/<class>/*.jpg writes DIR/train500.csv and DIR/train1000.csv.
"""

import csv
import sys
from pathlib import Path


def write(root: Path, n: int) -> None:
    with (root / f"train{n}.csv").open("w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(["path", "label", "split"])
        for split, most in (("train", n), ("test", 200)):
            for folder in sorted((root / split).iterdir()):
                for path in sorted(folder.iterdir())[:most]:
                    rows.writerow([path.relative_to(root), folder.name, split])


if __name__ == "__main__":
    for n in (500, 1000):
        write(Path(sys.argv[1]), n)
