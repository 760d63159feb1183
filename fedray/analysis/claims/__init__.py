"""Reading claims, deciding them on the runs of a store, showing what was decided; `analysis.claims` is the command."""
