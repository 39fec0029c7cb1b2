"""`python -m agentload.sim.server`: what `agentload sim` runs."""

import sys

from agentload.sim.server import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
