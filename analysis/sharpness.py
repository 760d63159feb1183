"""`python -m analysis.sharpness` is `fedray sharpness`."""

from fedray.analysis.commands.sharpness import main
from fedray.common.entry import entry

if __name__ == "__main__":
    entry(main)
