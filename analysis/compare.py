"""`python -m analysis.compare` is `fedray compare`."""

from fedray.analysis.comparison import main
from fedray.common.entry import run_command

if __name__ == "__main__":
    run_command(main)
