"""`python -m analysis.tables` is `fedray tables`."""

from fedray.analysis.commands.tables import main
from fedray.common.entry import entry

if __name__ == "__main__":
    entry(main)
