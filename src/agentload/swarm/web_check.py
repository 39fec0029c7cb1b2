"""Faults of what is typed into Locust's web page, shown there instead of a run that cannot be."""

from __future__ import annotations

from typing import Any

from flask import Response, jsonify, request
from locust.argument_parser import ui_extra_args_dict
from locust.runners import STATE_RUNNING, STATE_SPAWNING

from agentload.swarm.owner_side import OwnerSide
from agentload.swarm.plan import InputError

# Locust takes every option that a form names, shown or not: a page could set where runs are
# written, or have any file of this machine sent as the key.
_LOCUSTS_OWN = frozenset(
    {"user_count", "spawn_rate", "host", "run_time", "user_classes", "shape_class", "profile"}
)
_FIELDS = ("scenario", "model", "arm")


def refuse_in_form(app: Any, environment: Any, owner: OwnerSide) -> None:
    """Before Locust starts a run from its form, examine what the form says."""

    def examine_form() -> Response | None:
        starts = request.method == "POST" and request.path.rstrip("/").endswith("/swarm")
        if not starts or environment.runner.state in (STATE_RUNNING, STATE_SPAWNING):
            return None
        options = environment.parsed_options
        shown = _LOCUSTS_OWN | set(ui_extra_args_dict())
        hidden = sorted((set(request.form) & set(vars(options))) - shown)
        if hidden:
            text = f"{', '.join(hidden)}: set on the command line only"
            return jsonify({"success": False, "message": text, "host": environment.host})
        for name in _FIELDS:
            if name in request.form:
                setattr(options, name, request.form[name])
        if request.form.get("host"):
            environment.host = request.form["host"]
        try:
            owner.examine()
        except InputError as error:
            return jsonify({"success": False, "message": str(error), "host": environment.host})
        return None

    app.before_request(examine_form)
