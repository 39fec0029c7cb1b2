"""`python -m agentload`."""

import sys

from agentload.cli import main

sys.exit(main())
