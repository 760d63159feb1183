"""`python -m analysis.claims` is `fedray claims`."""

from fedray.analysis.commands.claims import main
from fedray.common.entry import entry

if __name__ == "__main__":
    entry(main)
