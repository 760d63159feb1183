"""`python -m analysis.compare` is `fedray compare`."""

from fedray.analysis.commands.compare import main
from fedray.common.entry import entry

if __name__ == "__main__":
    entry(main)
