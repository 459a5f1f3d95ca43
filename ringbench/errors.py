"""What reaches a user when something is wrong: one sentence that says what was found, what was expected and what to do."""


class RingbenchError(Exception):
    """A run failed. The command line prints the message alone and exits with `exit_code`."""

    exit_code = 1


class UsageError(RingbenchError):
    """The request itself is wrong: an unknown name, a bad registry entry, an impossible option."""

    exit_code = 2


class Unavailable(RingbenchError):
    """Something outside the project is missing: a file, a data set, a package. Says where to put it or what to install."""

    exit_code = 3


def sentence(error: BaseException) -> str:
    """What a person is told of any error."""
    text = str(error).strip() or type(error).__name__
    if text.startswith("Caught ") and "\nOriginal Traceback" in text:  # torch's, of a process that loads data
        text = raised(text)[1]
    if isinstance(error, RingbenchError):
        return text
    if isinstance(error, OSError) and error.filename:
        return f"{error.filename}: {error.strerror}"
    if isinstance(error, OSError) and error.strerror:  # of a full disk
        return error.strerror
    first = text.splitlines()[0]
    if _of_memory(error, first):
        return f"out of memory: a smaller batch, smaller images or a shorter queue need less ({first[:160]})"
    return f"{type(error).__name__}: {first} (--debug shows where)"


def raised(traceback: str) -> tuple[str, str]:
    """(type, message) at the end of a traceback."""
    lines = traceback.rstrip().splitlines()
    frame = max((i for i, line in enumerate(lines) if line.startswith('  File "')), default=0)
    last = next((i for i in range(frame, len(lines)) if not lines[i].startswith(" ")), len(lines) - 1)
    name, _, message = lines[last].partition(": ")
    return name, "\n".join([message, *lines[last + 1 :]])


def _of_memory(error: BaseException, text: str) -> bool:
    """Python's own, torch's on a GPU, and torch's on a CPU, which has no type of its own."""
    return isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError" or "can't allocate memory" in text
