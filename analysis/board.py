"""`python -m analysis.board` is `fedray board`."""

from fedray.common.entry import run_command
from fedray.papers.commands.board import app

if __name__ == "__main__":
    run_command(app)
