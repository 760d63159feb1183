"""Measure one GPU in three calls of at most 9 minutes, without Ray and MLflow.

    python -m benchmarks.gpu_day --wheels            # prints what to collect beforehand, for a machine without network
    python -m benchmarks.gpu_day rounds FOLDER       # seconds of a round in lanes, beside a plain loop
    python -m benchmarks.gpu_day hashes FOLDER       # hashes of all methods; called again, it goes on
    python -m benchmarks.gpu_day sharing FOLDER      # 1 to 8 processes, without and with MPS
    python -m benchmarks.gpu_day rounds FOLDER --device cpu --tiny     # tests the code without a GPU

Each call writes `gpu-PART.json` to the folder and says each figure as soon as it is known. `python -m benchmarks.table`
writes docs/performance.md's GPU part from the files in benchmarks/results. Data are synthetic. Plain processes stand
for Ray's actors. Only the standard library is imported before what else is needed is looked for.
"""

import argparse
import importlib.util
import subprocess
import sys
from pathlib import Path

NEEDED = {
    "torch": "torch",
    "torchvision": "torchvision",
    "numpy": "numpy",
    "pydantic": "pydantic",
    "safetensors": "safetensors",
    "yaml": "pyyaml",
}
"""Modules that the numerics import -> their names for pip."""
PARTS = ("rounds", "hashes", "sharing")
MINUTES = 9.0
"""Limit of a part; it begins nothing later."""
WHEELS = (
    "pip download --dest wheels --only-binary=:all: --python-version 3.12 --platform manylinux2014_x86_64 "
    "--platform manylinux_2_17_x86_64 pydantic safetensors pyyaml"
)
INSTALL = "pip install --no-index --find-links wheels"


def main() -> int:
    """Run the part that is asked for; return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu_day", description="Measure one GPU, part by part.")
    parser.add_argument("part", choices=PARTS, nargs="?")
    parser.add_argument("folder", type=Path, nargs="?", help="of the results")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--tiny", action="store_true", help="smallest sizes, to test the code")
    parser.add_argument("--wheels", action="store_true", help="print the command that collects what may be missing")
    asked = parser.parse_args()
    if asked.wheels:
        print(
            f"{WHEELS}\n# on the machine with the GPU, next to the folder wheels: {INSTALL} pydantic safetensors pyyaml"
        )
        return 0
    if asked.part is None or asked.folder is None:
        parser.error("a part and a folder for its results are required")
    if missing := [name for module, name in NEEDED.items() if importlib.util.find_spec(module) is None]:
        found = Path("wheels").is_dir()
        how = (
            f"{INSTALL} {' '.join(missing)}" if found else "python -m benchmarks.gpu_day --wheels says what to collect"
        )
        print(f"not installed: {', '.join(missing)}; {how}", file=sys.stderr)
        return 2
    # Another process is asked, so that this one holds no memory of the GPU before it measures.
    look = [sys.executable, "-c", "import torch, sys; sys.exit(not torch.cuda.is_available())"]
    if asked.device == "cuda" and subprocess.run(look, check=False).returncode:
        print("--device cuda: not measured: torch sees no CUDA device here", file=sys.stderr)
        return 2
    from benchmarks.gpu_day.parts import run_part

    run_part(asked.part, asked.device, asked.tiny, 60 * MINUTES, asked.folder)
    return 0


if __name__ == "__main__":
    sys.exit(main())
