"""The ground under the floors: errors, atomic files, places and progress. Imports nothing of the rooms above."""

__version__ = "0.1.0"
