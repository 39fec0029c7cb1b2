"""A server that is not what it is asked to be.

    python liar.py deaf|boasting --port PORT [flags]

`deaf` leaves prefix caching off whatever the flags say. `boasting` does not chunk prefills, and its
log says that it does.
"""

import subprocess
import sys

UNDONE = {
    "deaf": ["--no-enable-prefix-caching"],
    "boasting": ["--no-enable-chunked-prefill", "--max-num-batched-tokens", "32768"],
}
how, *flags = sys.argv[1:]
command = [sys.executable, "-m", "agentload.sim.server", *flags, *UNDONE[how]]
with subprocess.Popen(
    command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
) as server:
    assert server.stdout is not None
    for line in server.stdout:
        if how == "boasting":
            line = line.replace("enable_chunked_prefill=False", "enable_chunked_prefill=True")
            line = line.replace("max_num_batched_tokens=32768", "max_num_batched_tokens=2048")
        print(line, end="", flush=True)
