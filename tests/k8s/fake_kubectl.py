"""A `kubectl` that answers as a test told it to, and writes down what it was asked.

The real one is called for `kustomize`. FAKE_KUBECTL is a folder: `answers.json` holds a list of
{"args": words that must all be there, "out", "err", "code", "times", "copy"}; the first one that
fits and is not used up answers. `calls.jsonl` gets one line for each call.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
from pathlib import Path


def main() -> int:
    folder = Path(os.environ["FAKE_KUBECTL"])
    words = sys.argv[1:]
    if words[:1] == ["kustomize"]:
        os.execv(os.environ["REAL_KUBECTL"], ["kubectl", *words])
    text = "" if sys.stdin is None or sys.stdin.isatty() else sys.stdin.read()
    with (folder / "calls.jsonl").open("a") as calls:
        calls.write(json.dumps({"args": words, "text": text}) + "\n")
    answers = json.loads((folder / "answers.json").read_text())
    for answer in answers:
        if answer.get("times", 1_000_000) > 0 and set(answer["args"]) <= set(words):
            answer["times"] = answer.get("times", 1_000_000) - 1
            (folder / "answers.json").write_text(json.dumps(answers))
            if "copy" in answer:
                shutil.copytree(answer["copy"], words[words.index("cp") + 2])
            sys.stdout.write(answer.get("out", ""))
            sys.stderr.write(answer.get("err", ""))
            return int(answer.get("code", 0))
    sys.stderr.write(f"the test told no answer to {words}\n")
    return 99


if __name__ == "__main__":
    sys.exit(main())
