"""`python -m analysis.sharpness` is `fedray sharpness`."""

from fedray.common.entry import run_command
from fedray.papers.sharpness import main

if __name__ == "__main__":
    run_command(main)
