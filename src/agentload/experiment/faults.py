"""What is wrong with a plan that single fields cannot tell."""

from __future__ import annotations

import re
import urllib.parse
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from agentload.client.base_url import BaseUrlError, normalise_base_url
from agentload.experiment.cpus import split
from agentload.experiment.plan import (
    BUDGET,
    CHUNKED,
    MODEL_LEN,
    CommandTarget,
    EmbeddedTarget,
    Experiment,
    Flag,
    KubernetesTarget,
    differences,
    token_budget,
)

SECRET_FLAGS = {"api-key", "hf-token"}
SECRET_WORDS = re.compile(r"--(?:api-key|hf-token)\b")
OUR_FLAGS = {"port", "host"}  # set when the server is started
_FLAG = re.compile(r"[a-z0-9][a-z0-9.-]*")


def faults(experiment: Experiment, folder: Path, *, rendered: bool = False) -> list[str]:
    """Everything wrong with the plan that single fields cannot tell; empty when it can be run.

    `rendered`: the flags of the overlays are in it; before that the arms cannot be compared.
    """
    if rendered:
        return [*_budget_faults(experiment), *_difference_faults(experiment)]
    compared = [] if experiment.target.kind == "kubernetes" else _difference_faults(experiment)
    return [
        *_scenario_faults(experiment, folder),
        *_name_faults(experiment),
        *_address_faults(experiment),
        *_overlay_faults(experiment, folder),
        *_command_faults(experiment),
        *_cpu_faults(experiment),
        *_dcgm_faults(experiment),
        *_flag_faults(experiment),
        *_secret_faults(experiment),
        *_budget_faults(experiment),
        *_seed_faults(experiment),
        *compared,
    ]


def _scenario_faults(experiment: Experiment, folder: Path) -> list[str]:
    path = folder / experiment.scenario
    return [] if path.is_file() else [f"scenario: {experiment.scenario}: no such file ({path})"]


def _name_faults(experiment: Experiment) -> list[str]:
    counts = Counter(arm.name for arm in experiment.arms)
    return [f"arms: the name {n!r} is given {c} times" for n, c in counts.items() if c > 1]


def _seed_faults(experiment: Experiment) -> list[str]:
    places = [("overrides", experiment.overrides)]
    places += [(f"arms.{arm.name}.scenario", arm.scenario) for arm in experiment.arms]
    found = [f"{place}: seed is set by `seeds`" for place, keys in places if "seed" in keys]
    twice = sorted(seed for seed, count in Counter(experiment.seeds).items() if count > 1)
    return found + [f"seeds: {seed} is given more than once; use `blocks`" for seed in twice]


def _address_faults(experiment: Experiment) -> Iterator[str]:
    is_url = experiment.target.kind == "url"
    need = "needs a base_url" if is_url else "has a base_url, which only target kind 'url' takes"
    for arm in experiment.arms:
        if (arm.base_url is not None) != is_url:
            yield f"arms.{arm.name}: {need}"
        elif arm.base_url is not None:
            yield from _url_fault(f"arms.{arm.name}.base_url", arm.base_url)
    if isinstance(experiment.target, KubernetesTarget) and experiment.target.base_url is not None:
        yield from _url_fault("target.base_url", experiment.target.base_url)


def _url_fault(place: str, url: str) -> Iterator[str]:
    try:
        normalise_base_url(url)
    except BaseUrlError as error:
        yield f"{place} {error}"


def _overlay_faults(experiment: Experiment, folder: Path) -> Iterator[str]:
    wanted = experiment.target.kind == "kubernetes"
    if wanted and experiment.target.flags:
        yield "target.flags: with kind 'kubernetes' the overlays have the flags; move them there"
    for arm in experiment.arms:
        if (arm.overlay is not None) != wanted:
            need = "needs an overlay" if wanted else "has an overlay, which only target kind"
            yield f"arms.{arm.name}: {need}" + ("" if wanted else " 'kubernetes' takes")
        elif arm.overlay is not None and not (folder / arm.overlay).is_dir():
            yield f"arms.{arm.name}.overlay: {arm.overlay}: no such folder ({folder / arm.overlay})"
        if wanted and arm.flags:
            yield f"arms.{arm.name}.flags: with kind 'kubernetes' the overlay has the flags"


def _command_faults(experiment: Experiment) -> Iterator[str]:
    target = experiment.target
    if not isinstance(target, CommandTarget):
        return
    if not any("{port}" in word for word in target.command):
        yield (
            "target.command: no word has {port}, so the server would not listen where it is"
            ' waited for; add for example --port, "{port}"'
        )
    if any(SECRET_WORDS.match(word) for word in target.command):
        yield f"target.command: {_NO_KEYS}"


def _cpu_faults(experiment: Experiment) -> Iterator[str]:
    target = experiment.target
    if isinstance(target, EmbeddedTarget | CommandTarget):
        try:
            split(target.cpus)
        except ValueError as error:
            yield f"target.cpus: {error}"


def _dcgm_faults(experiment: Experiment) -> Iterator[str]:
    url = experiment.target.dcgm_url
    if url is None:
        return
    try:
        parts = urllib.parse.urlsplit(url)
        good = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        good = False
    if "@" in url:
        yield (
            "target.dcgm_url: a user name or password does not belong into a file; leave the key"
            " out and set AGENTLOAD_DCGM_URL in the environment"
        )
    elif not good:
        yield "target.dcgm_url: is no address; write it like http://host:9400/metrics"


def _flag_faults(experiment: Experiment) -> Iterator[str]:
    """Flags have one spelling, so that no second one of the same flag goes unseen."""
    for place, flags in _flag_places(experiment):
        for name in flags:
            plain = name.strip("-").replace("_", "-")
            if not _FLAG.fullmatch(plain):
                yield f"{place}: {name!r} is no name of a flag"
            elif name.startswith("no-"):
                yield f"{place}.{name}: write it as {plain[3:]}: false"
            elif name != plain:
                yield f"{place}.{name}: write it as {plain}"
            elif name in OUR_FLAGS:
                yield f"{place}.{name}: is set by the experiment; leave it out"


def _flag_places(experiment: Experiment) -> list[tuple[str, dict[str, Flag]]]:
    if experiment.target.kind == "kubernetes":  # an overlay's flags are what it says
        return []
    arms = [(f"arms.{arm.name}.flags", arm.flags) for arm in experiment.arms]
    return [("target.flags", experiment.target.flags), *arms]


_NO_KEYS = (
    "a key does not belong into a file or a command line; set VLLM_API_KEY for the server and"
    " OPENAI_API_KEY for the load in the environment"
)


def _secret_faults(experiment: Experiment) -> list[str]:
    """Flags are recorded and stand in the process list, so no key may be among them."""
    return [
        f"{place}.{name}: {_NO_KEYS}"
        for place, flags in _flag_places(experiment)
        for name in flags
        if name.strip("-").replace("_", "-") in SECRET_FLAGS
    ]


def _budget_faults(experiment: Experiment) -> list[str]:
    found = []
    for arm in experiment.arms:
        flags = {**experiment.target.flags, **arm.flags}
        chunked, budget, length = flags.get(CHUNKED, True), flags.get(BUDGET), flags.get(MODEL_LEN)
        if token_budget(chunked, budget, length).verdict == "reject":
            found.append(
                f"arms.{arm.name}: {BUDGET} is {budget}, below {MODEL_LEN} {length}, and chunked"
                " prefill is off: the server would refuse to start; raise the budget to at least"
                f" {length} or leave it out"
            )
    return found


def _difference_faults(experiment: Experiment) -> list[str]:
    """Arms may differ only in what `vary` names: anything else would be compared unseen."""
    allowed = set(experiment.vary)
    found = [
        f"arms: they differ in {name!r} ({', '.join(sorted(map(str, values)))}), which `vary` does"
        f" not name; vary is {sorted(allowed)}. Give it one value in all arms (target.flags,"
        " overrides), or add it to `vary`"
        for name, values in differences(experiment).items()
        if name not in allowed
    ]
    if experiment.target.kind == "url":  # its servers' flags need not be told here
        return found
    unchanged = sorted(allowed - differences(experiment).keys())
    return found + [f"vary: {name!r} is the same in every arm" for name in unchanged]
