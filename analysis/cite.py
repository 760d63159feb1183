"""`python -m analysis.cite` is `fedray cite`."""

from fedray.analysis.commands.cite import main
from fedray.common.entry import run_command

if __name__ == "__main__":
    run_command(main)
