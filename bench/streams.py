"""Standard output and error that show what they can, whatever encodes them, wherever they lead and if they are there at all."""

import codecs
import os
import sys

SPELLED = {"±": "~", "…": "...", "─": "-"}


def prepare() -> None:
    """Let nothing that is printed raise for its letters; a stream that was closed before the start swallows everything."""
    codecs.register_error("spelled", _spelled)
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, "w"))  # noqa: PTH123, SIM115 - as long as the process
        else:
            getattr(sys, name).reconfigure(errors="spelled")


def finish() -> None:
    """Write what is left, so that a full disk behind standard output is no surprise to the interpreter as it exits."""
    try:
        sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _spelled(error: UnicodeError) -> tuple[str, int]:
    """Signs in letters, whatever else a stream cannot encode as its escape."""
    if not isinstance(error, UnicodeEncodeError):
        raise error
    text = error.object[error.start : error.end]
    return "".join(SPELLED.get(sign) or sign.encode("ascii", "backslashreplace").decode() for sign in text), error.end
