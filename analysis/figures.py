"""`python -m analysis.figures` is `fedray figures`."""

from fedray.analysis.figures import main
from fedray.common.entry import run_command

if __name__ == "__main__":
    run_command(main)
