"""The console that commands print tables on."""

from __future__ import annotations

import os
import sys

from rich.console import Console

FILE_COLUMNS = 160  # in a file or a pipe nothing has to be cut to a terminal's 80


def output_console() -> Console:
    """Standard output, as wide as its terminal or `COLUMNS`."""
    free = not sys.stdout.isatty() and "COLUMNS" not in os.environ
    return Console(width=FILE_COLUMNS if free else None)
