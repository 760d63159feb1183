"""`python -m analysis.rank` is `fedray rank`."""

from fedray.analysis.commands.rank import main
from fedray.common.entry import run_command

if __name__ == "__main__":
    run_command(main)
