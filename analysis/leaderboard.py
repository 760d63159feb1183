"""`python -m analysis.leaderboard` is `fedray leaderboard`."""

from fedray.analysis.commands.leaderboard import main
from fedray.common.entry import run_command

if __name__ == "__main__":
    run_command(main)
