"""`python -m analysis.compare` is `fedray compare`."""

from fedray.analysis.commands.compare import main
from fedray.common.entry import run_command

if __name__ == "__main__":
    run_command(main)
