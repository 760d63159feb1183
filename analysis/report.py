"""`python -m analysis.report` is `fedray report`."""

from fedray.analysis.report import main
from fedray.common.entry import run_command

if __name__ == "__main__":
    run_command(main)
