"""`gpi` and `python -m gpi`: the command line."""

import sys


def main() -> int:
    """Run one command; return the exit code."""
    try:
        import fcntl  # noqa: F401 (commands are imported later)

        from gpi.cli import main as run
    except ModuleNotFoundError as error:
        if error.name != "fcntl":
            raise
        why = f"Python's module fcntl, with which gpi locks its files, does not exist on {sys.platform}"
        print(f"gpi: {why}; use Linux, or Linux in WSL or a container", file=sys.stderr)
        return 2
    return run()


if __name__ == "__main__":
    sys.exit(main())
