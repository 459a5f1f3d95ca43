"""Words for sentences about what was not understood."""

from collections.abc import Collection
from difflib import get_close_matches


def nearest(word: str, known: Collection[str]) -> str:
    """The end of a sentence about an unknown word: the known words that look like it, or all of them where they are few."""
    if near := get_close_matches(word, known, n=2):
        return "; did you mean " + " or ".join(f'"{name}"' for name in near) + "?"
    return f"; expected {', '.join(known)}" if 0 < len(known) <= 16 else ""
