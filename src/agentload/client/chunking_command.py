"""Prints how a target takes a long prompt beside a stream, as one line of JSON.

    python -m agentload.client.chunking_command BASE_URL MODEL PROMPT_TOKENS

The key comes from OPENAI_API_KEY. Exit code 1, and the reason on standard error, when the target
cannot be asked.
"""

from __future__ import annotations

from gevent import monkey

monkey.patch_all()  # before anything that sends is imported

import json  # noqa: E402
import os  # noqa: E402
import sys  # noqa: E402
from dataclasses import asdict  # noqa: E402

from agentload.client.doctor_probes import Examination, Wishes  # noqa: E402
from agentload.client.errors import RequestFailure  # noqa: E402
from agentload.client.settings import SettingsError, load_settings  # noqa: E402
from agentload.client.transport import Client  # noqa: E402


def main(words: list[str]) -> int:
    base_url, model, prompt_tokens = words
    try:
        flags = {"base_url": base_url, "model": model}
        settings, _ = load_settings(flags, os.environ, None)
        client = Client(settings)
        found = Examination(client, Wishes(None, None, int(prompt_tokens))).chunking()
        client.close()
    except (SettingsError, RequestFailure) as error:
        print(error, file=sys.stderr)
        return 1
    print(json.dumps({**asdict(found), "chunk_tokens": found.chunk_tokens}))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
