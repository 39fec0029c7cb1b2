"""Makes `planted`, the writer of run folders with a known truth, importable from the tests here."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
