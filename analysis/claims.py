"""`python -m analysis.claims` is `fedray claims`."""

from fedray.common.entry import run_command
from fedray.papers.commands.claims import main

if __name__ == "__main__":
    run_command(main)
