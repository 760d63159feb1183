"""`python -m analysis.claims` is `fedray claims`."""

from fedray.analysis.commands.claims import main
from fedray.common.entry import run_command

if __name__ == "__main__":
    run_command(main)
