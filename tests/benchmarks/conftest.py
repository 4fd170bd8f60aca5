import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))  # the benchmarks, which are no part of the package
sys.path.insert(0, str(Path(__file__).parent))
