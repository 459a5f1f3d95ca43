"""Memory in huge pages. A network's layers ask for tens of megabytes and give them back, and on a CPU the faults of small pages
cost a fifth of the time of training a ResNet-18."""

import os
import sys

TUNABLE = "GLIBC_TUNABLES"  # read once, before a program's first line


def prefer_huge_pages() -> None:
    """Begin this program anew where glibc allots its memory and was not told how. Other allocators pay no heed."""
    if sys.platform == "linux" and TUNABLE not in os.environ:
        os.environ[TUNABLE] = "glibc.malloc.hugetlb=1"
        os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])
