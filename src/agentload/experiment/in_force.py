"""Whether a server runs with what an arm asked for, and like the servers of the other arms."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from agentload.experiment.plan import BUDGET, CHUNKED, OF_OVERLAY, OF_SCENARIO, Flag

# Older and inner names of the flags.
ALIASES = {"max_seq_len": "max_model_len", "chunked_prefill_enabled": "enable_chunked_prefill"}
# Sizes that follow from the flags rather than being chosen. They are named where they differ.
DERIVED = frozenset({"num_gpu_blocks"})
PROBE_TOKENS = 16_000
USUAL_BUDGET = 8_192
CHUNKS_TO_SEE = 6  # a prompt of so many chunks stops its neighbour for a third of it at most
LEAST_CHUNKS = 2.5  # below, one chunk is most of the prompt
_HUMAN = re.compile(r"(\d+(?:\.\d+)?)([kKmMgGtT])")
_UNITS = {"k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12}
_BINARY = {"K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}


@dataclass(frozen=True, slots=True)
class Reading:
    """One setting as a source tells it: `/metrics`, `/v1/models`, `/version`, or the log."""

    name: str
    value: str
    source: str


def plain_name(name: str) -> str:
    """A setting's one name, whether given as a flag or told by the server."""
    plain = name.replace("-", "_")
    return ALIASES.get(plain, plain)


def settings_of(readings: Iterable[Reading]) -> dict[str, str]:
    """Name -> value; of several sources the last one stands."""
    return {reading.name: reading.value for reading in readings}


def not_in_force(wished: Mapping[str, Flag], readings: Sequence[Reading]) -> list[str]:
    """What the server itself tells to be otherwise than asked for."""
    asked = {plain_name(name): (name, value) for name, value in wished.items()}
    found = []
    for reading in readings:
        name, value = asked.get(reading.name, (reading.name, None))
        if value is not None and same(value, reading.value) is False:
            found.append(
                f"{name}: asked for {_shown(value)}, in force {reading.value} ({reading.source})"
            )
    return found


def same(wished: Flag, found: str) -> bool | None:
    """Whether both mean one value; None when they cannot be compared."""
    if isinstance(wished, bool):
        return {"true": wished, "false": not wished}.get(found.lower())
    if str(wished).lower() in ("auto", "none", "-1"):
        return None
    numbers = [_number(str(wished)), _number(found)]
    if None not in numbers:
        return numbers[0] == numbers[1]
    if numbers == [None, None]:
        return str(wished) == found
    return None


def _number(text: str) -> float | None:
    """Also as vLLM's command line has it: 32k are 32,000 and 32K are 32,768."""
    human = _HUMAN.fullmatch(text)
    if human is not None:
        return float(human[1]) * {**_UNITS, **_BINARY}[human[2]]
    try:
        return float(text)
    except ValueError:
        return None


def probe_tokens(settings: Mapping[str, Any], wished: Mapping[str, Flag]) -> int | None:
    """Length of the prompt that shows chunking; None when no prompt that fits could.

    `settings` are those told by the server. A neighbour needs a place beside the prompt.
    """
    if _whole(settings, wished, "max-num-seqs") == 1:
        return None
    budget = _whole(settings, wished, BUDGET)
    limit = _whole(settings, wished, "max-model-len")
    chunked = wished.get(CHUNKED, settings.get("enable_chunked_prefill", "True"))
    if str(chunked).lower() == "false":
        return PROBE_TOKENS if limit is None else min(PROBE_TOKENS, limit // 2)
    wanted = max(PROBE_TOKENS, CHUNKS_TO_SEE * (budget or USUAL_BUDGET))
    tokens = wanted if limit is None else min(wanted, limit // 2)
    return None if budget is not None and tokens < LEAST_CHUNKS * budget else tokens


def _whole(settings: Mapping[str, Any], wished: Mapping[str, Flag], flag: str) -> int | None:
    value = settings.get(plain_name(flag), wished.get(flag))
    number = None if value is None or isinstance(value, bool) else _number(str(value))
    return None if number is None else int(number)


def probe_contradicts(wished: Mapping[str, Flag], probe: Mapping[str, Any]) -> str | None:
    """What the probe showed to be otherwise than asked for; None when it agrees or cannot tell."""
    chunked, effective = wished.get(CHUNKED), probe.get("effective")
    if not isinstance(chunked, bool) or effective is None or chunked == effective:
        return None
    return (
        f"{CHUNKED}: asked for {_shown(chunked)}, in effect {'on' if effective else 'off'} (probe:"
        f" a stream stood still for {probe.get('longest_gap_s') or 0:.3f} s of the"
        f" {probe.get('prefill_s') or 0:.3f} s of a cold prompt's prefill)"
    )


@dataclass(frozen=True, slots=True)
class Unlike:
    """What differs from the servers before: `faults` nobody meant, `notes` that follow from it."""

    faults: tuple[str, ...]
    notes: tuple[str, ...]


def unlike(
    arm: str,
    settings: Mapping[str, Any],
    earlier: Mapping[str, Mapping[str, Any]],
    vary: Iterable[str],
    accept: Iterable[str],
) -> Unlike:
    """This server's settings against those of the complete cells, given by their arms.

    Another arm may differ in `vary`; the same arm in nothing. `accept` may differ anywhere.
    """
    accepted = {plain_name(name) for name in accept}
    meant = {plain_name(name) for name in vary}
    faults, notes = [], []
    for other, before in earlier.items():
        for name in sorted(settings.keys() & before.keys()):
            if str(settings[name]) == str(before[name]) or (other != arm and name in meant):
                continue
            text = f"{name}: {settings[name]}, but {before[name]} in the cell of {other}"
            if name in accepted or name in DERIVED:
                notes.append(text)
            else:
                faults.append(text)
    return Unlike(tuple(faults), tuple(notes))


def taken_on_trust(vary: Iterable[str], settings: Mapping[str, Any]) -> list[str]:
    """The flags that arms are meant to differ in and of which the server tells nothing."""
    flags = [v for v in vary if not v.startswith((OF_SCENARIO, OF_OVERLAY))]
    return [flag for flag in flags if plain_name(flag) not in settings]


def _shown(value: Flag) -> str:
    return {True: "on", False: "off"}[value] if isinstance(value, bool) else str(value)
