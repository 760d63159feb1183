"""Read by every Python process that tests start: as in `conftest.py`, imports take a tenth less."""

import gc

gc.set_threshold(50_000)
