"""The one exception that users cause: it becomes one line and an exit code."""


class UsageError(ValueError):
    """Bad input: the message states value, rule and remedy on one line; the command line exits with code 2."""
