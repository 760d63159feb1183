"""Who runs a cell: one process at a time, and a dead one no more."""

import subprocess
import sys
from pathlib import Path

from fedray.sweep.storage import Claims

HOLDER = """
import sys
from pathlib import Path
from fedray.sweep.storage import Claims
claims = Claims(Path(sys.argv[1]))
print(sorted(claims.take(["00000000000000aa", "00000000000000bb"])), flush=True)
for line in sys.stdin:
    claims.release(line.strip())
    print("released", flush=True)
"""
A, B, C = "00000000000000aa", "00000000000000bb", "ffffffffffffffff"


def test_a_cell_is_claimed_once_until_it_is_released_or_its_holder_dies(tmp_path: Path) -> None:
    path = tmp_path / "locks" / "cells"
    with Claims(path) as claims:
        assert claims.take([A]) == {A}
        claims.release(A)
        with subprocess.Popen(
            [sys.executable, "-c", HOLDER, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        ) as holder:
            assert holder.stdin is not None
            assert holder.stdout is not None
            assert holder.stdout.readline() == f"{[A, B]}\n"
            assert claims.take([A, B, C]) == {C}
            print(A, file=holder.stdin, flush=True)
            holder.stdout.readline()
            assert claims.take([A, B]) == {A}
            holder.kill()
            holder.wait()
            assert claims.take([B]) == {B}
