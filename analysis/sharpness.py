"""`python -m analysis.sharpness` is `fedray sharpness`."""

from fedray.analysis.commands.sharpness import main
from fedray.common.entry import run_command

if __name__ == "__main__":
    run_command(main)
