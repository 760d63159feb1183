"""`python -m analysis.check` is `fedray check`."""

from fedray.analysis.commands.check import main
from fedray.common.entry import run_command

if __name__ == "__main__":
    run_command(main)
