"""Starts and stops runs for the live page."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import gevent
from locust.runners import STATE_CLEANUP, STATE_RUNNING, STATE_SPAWNING, STATE_STOPPING

from agentload.recording.scrape import without_secrets
from agentload.swarm.owner_side import OwnerSide
from agentload.swarm.plan import InputError
from agentload.swarm.web.form import (
    Asked,
    FormFault,
    as_options,
    check_scenario,
    read_form,
    scenario_files,
)

_BUSY = (STATE_SPAWNING, STATE_RUNNING, STATE_STOPPING, STATE_CLEANUP)
_CHANGED = ("scenario", "arm", "model", "seed", "context_scale", "set", "num_users", "run_time")


class Starter:
    """Turns what the form says into Locust's options and a run."""

    def __init__(self, environment: Any, owner: OwnerSide) -> None:
        self._environment = environment
        self._owner = owner
        self._given_scenario = str(environment.parsed_options.scenario)
        self._given_set = tuple(environment.parsed_options.set)
        self._starting = False

    def scenarios(self) -> list[str]:
        return scenario_files(self._given_scenario)

    def defaults(self) -> dict[str, str]:
        """What the fields hold at first: what was given, or asked for last."""
        options = self._environment.parsed_options
        return {
            "scenario": options.scenario or next(iter(self.scenarios()), ""),
            "arm": options.arm,
            "model": options.model or "",
            "host": without_secrets(self._environment.host or ""),
        }

    @property
    def busy(self) -> bool:
        runner = self._environment.runner
        begins = self._starting or bool(runner.shape_greenlet)  # false when it is dead
        return begins or runner.state in _BUSY or not self._owner.finished.is_set()

    def start(self, form: Mapping[str, str]) -> list[FormFault]:
        """Begin a run; what keeps it from beginning, all of it, when something does."""
        if self.busy:
            return [FormFault("", "a run is going on: stop it first")]
        asked, faults = read_form(form, self.scenarios())
        overrides: dict[str, object] = {}
        if all(fault.field != "scenario" for fault in faults):
            overrides, more = check_scenario(asked, self._given_set)
            faults += more
        if faults:
            return faults
        self._starting = True
        try:
            with self._options_of(asked, overrides):
                self._owner.check()
                self._owner.examine()
        except InputError as error:
            return [_as_fault(str(error))]
        finally:
            self._starting = False
        self._environment.runner.start_shape()
        return []

    def stop(self) -> None:
        """End the run; its answers may stream on for a while, so nobody waits here."""
        gevent.spawn(self._environment.runner.stop)

    @contextmanager
    def _options_of(self, asked: Asked, overrides: dict[str, object]) -> Iterator[None]:
        """Set the options; as they were before when the run cannot begin."""
        environment, options = self._environment, self._environment.parsed_options
        before = {name: getattr(options, name) for name in _CHANGED}
        host = environment.host
        options.scenario, options.arm, options.model = asked.scenario, asked.arm, asked.model
        options.seed, options.context_scale = asked.seed, asked.context_scale
        if self._owner.flags_given:
            overrides = {k: v for k, v in overrides.items() if k != "stages"}
            options.num_users = asked.users or options.num_users
            options.run_time = asked.duration_s
        options.set = as_options(overrides)
        if asked.host is not None and asked.host != without_secrets(host or ""):
            environment.host = asked.host
        try:
            yield
        except BaseException:
            vars(options).update(before)
            environment.host = host
            raise


def _as_fault(text: str) -> FormFault:
    """A fault that the target or its settings have, beside the field that mends it."""
    field = "model" if text.startswith("model ") else "scenario" if "context" in text else "host"
    return FormFault("" if text.startswith("no worker") else field, text)
