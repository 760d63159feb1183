"""`python -m fedray.cli` is `fedray`."""

from fedray.cli.main import main

main()
