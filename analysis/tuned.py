"""`python -m analysis.tuned` is `fedray tuned`."""

from fedray.analysis.commands.tuned import main
from fedray.common.entry import run_command

if __name__ == "__main__":
    run_command(main)
