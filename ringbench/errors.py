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
