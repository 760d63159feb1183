"""`python -m analysis.tables` is `fedray tables`."""

from fedray.analysis.tables.build import main
from fedray.common.entry import run_command

if __name__ == "__main__":
    run_command(main)
