"""`python -m analysis.report` is `fedray report`."""

from fedray.analysis.commands.report import main
from fedray.common.entry import entry

if __name__ == "__main__":
    entry(main)
