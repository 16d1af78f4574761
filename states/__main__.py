"""`python -m states` prints the state diagram, for docs/state-machine.md."""

from states.table import diagram

if __name__ == "__main__":
    print(diagram(), end="")  # noqa: T201  # its purpose
