"""`python -m analysis.figures` is `fedray figures`."""

from fedray.analysis.commands.figures import main
from fedray.common.entry import entry

if __name__ == "__main__":
    entry(main)
