"""Known vulnerabilities of the pinned dependencies, and how many of them were looked up at all.

    python .ci/audit.py constraints.txt

pip-audit asks PyPI. It says "No known vulnerabilities found" also when it found none of the
packages there, so what was not looked up is counted here, and told loudly. Exit code 1 only for a
vulnerability: a service that cannot be reached is no fault of the change that is checked.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

LIMIT_S = 120
BAR = "!" * 72
FLAGS = ("--no-deps", "--disable-pip", "--format=json", "--progress-spinner=off", "--timeout=10")


def pinned(constraints: Path) -> list[str]:
    """The lines that name a package and its version."""
    lines = (line.strip() for line in constraints.read_text(encoding="utf-8").splitlines())
    return [line for line in lines if line and not line.startswith("#")]


def looked_up(constraints: Path) -> list[dict[str, Any]]:
    """What pip-audit says of each package; empty when it could not say anything."""
    command = [sys.executable, "-m", "pip_audit", f"--requirement={constraints}", *FLAGS]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S, check=False)
        found: list[dict[str, Any]] = json.loads(done.stdout)["dependencies"]
    except subprocess.TimeoutExpired:
        print(f"pip-audit did not end within {LIMIT_S} s")
    except (ValueError, KeyError, TypeError):
        print(done.stderr.strip()[-400:])
    else:
        return [one for one in found if "skip_reason" not in one]
    return []


def main(argv: list[str]) -> int:
    constraints = Path(argv[0])
    wanted, audited = pinned(constraints), looked_up(constraints)
    missing = len(wanted) - len(audited)
    if missing:
        print(BAR)
        print(f"NOT AUDITED: {missing} of {len(wanted)} dependencies could not be looked up.")
        print(f"Audit them where PyPI can be reached: python .ci/audit.py {constraints}")
        print(BAR)
    bad = [(one, fault) for one in audited for fault in one.get("vulns", ())]
    for one, fault in bad:
        fixed = ", ".join(fault.get("fix_versions") or ()) or "no version yet"
        print(f"{one['name']} {one['version']}: {fault['id']}, fixed in {fixed}")
    print(f"{len(audited)} dependencies audited, {len(bad)} known vulnerabilities")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
