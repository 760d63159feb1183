"""Commands of the papers; `fedray.cli` names them in a table."""
