"""The suite's own page in Locust's web server, at `/agentload`."""

from __future__ import annotations

import logging
import zlib
from collections.abc import Callable
from functools import wraps
from importlib import resources
from pathlib import Path
from typing import Any

from flask import Blueprint, Response, jsonify, request
from jinja2 import Environment, PackageLoader, StrictUndefined

from agentload.live.openmetrics import CONTENT_TYPE
from agentload.live.snapshot import Snapshot
from agentload.swarm.live import current
from agentload.swarm.live.metrics_port import page as metrics_page
from agentload.swarm.options import offer_scenarios
from agentload.swarm.owner_side import OwnerSide
from agentload.swarm.web import guard, tab
from agentload.swarm.web.files import REPORT, listing, open_file
from agentload.swarm.web.form import scenario_files, shown_names
from agentload.swarm.web.report import ReportMaker
from agentload.swarm.web.starting import Starter

logger = logging.getLogger(__name__)

PATH = "/agentload"
ASSETS = {
    "page.css": "text/css",
    "page.js": "text/javascript",
    "charts.js": "text/javascript",
    "uPlot.iife.min.js": "text/javascript",
    "uPlot.min.css": "text/css",
    "uPlot.LICENSE.txt": "text/plain",
}
_PACKAGE = "agentload.swarm.web"

View = Callable[..., Any]


class Pages:
    """The views. Each is behind Locust's login where that is on."""

    def __init__(self, web_ui: Any, environment: Any, owner: OwnerSide) -> None:
        self._environment = environment
        self._starter = Starter(environment, owner)
        self._reports = ReportMaker()
        self._token = guard.new_token()
        self._login = web_ui.auth_required_if_enabled
        templates = Environment(
            loader=PackageLoader(_PACKAGE), autoescape=True, undefined=StrictUndefined
        )
        self._page = templates.get_template("page.html.j2")

    def blueprint(self, at: str) -> Blueprint:
        """All routes, at a path below that of Locust's own page."""
        found = Blueprint("agentload", __name__, url_prefix=at)
        found.after_request(lambda response: guard.harden(response, guard.PAGE_POLICY))
        routes: list[tuple[str, View, str]] = [
            ("", self.page, "GET"),
            ("/assets/<name>", self.asset, "GET"),
            ("/snapshot", self.snapshot, "GET"),
            ("/metrics", self.metrics, "GET"),
            ("/files/<run_id>/<name>", self.file, "GET"),
            ("/start", self._guarded(self.start), "POST"),
            ("/stop", self._guarded(self.stop), "POST"),
            ("/report/<run_id>", self._guarded(self.report), "POST"),
        ]
        for rule, view, method in routes:
            name = view.__name__
            found.add_url_rule(rule, name, self._login(view), methods=[method])
        return found

    def _guarded(self, view: View) -> View:
        """Only for our own page: it knows the token."""

        @wraps(view)
        def guarded(*args: Any, **kwargs: Any) -> Any:
            if not guard.has_token(request.headers, self._token):
                return _refused("this action is for the page itself: load it again", 403)
            return view(*args, **kwargs)

        return guarded

    # -- reading ----------------------------------------------------------------------------

    def page(self) -> Response:
        html = self._page.render(
            token=self._token,
            scenarios=shown_names(self._starter.scenarios()),
            defaults=self._starter.defaults(),
        )
        return Response(html, content_type="text/html; charset=utf-8")

    def asset(self, name: str) -> Response:
        kind = ASSETS.get(name)
        if kind is None:
            return _refused("there is no such file", 404)
        body = (resources.files(_PACKAGE) / "static" / name).read_bytes()
        answer = Response(body, content_type=f"{kind}; charset=utf-8")
        answer.headers["Cache-Control"] = "no-cache"
        answer.set_etag(f"{len(body)}-{zlib.crc32(body)}")
        answer.make_conditional(request)
        return answer

    def snapshot(self) -> Response:
        """The figures; `after` names the run and the last moment the page has of it."""
        snapshot = current.snapshot()
        run_id, _, seen = request.args.get("after", "").rpartition("@")
        answer: dict[str, Any] = {
            "busy": self._starter.busy,
            "state": self._environment.runner.state,
            "run": None,
            "earlier": [_summary(s) for s in current.earlier()],
        }
        if snapshot is not None:
            after_s = _seconds(seen) if run_id == snapshot.run_id else -1.0
            answer["run"] = snapshot.to_json(history_after_s=after_s)
            answer["files"] = listing(Path(snapshot.run_dir))
        return jsonify(answer)

    def metrics(self) -> Response:
        """The figures for Prometheus; where the login is on, it sends user and password."""
        return Response(metrics_page(), content_type=CONTENT_TYPE)

    def file(self, run_id: str, name: str) -> Response:
        folder = _folder_of(run_id)
        found = None if folder is None else open_file(folder, name)
        if found is None:
            return _refused("there is no such file", 404)
        answer = Response(found.blocks(), content_type=found.kind)
        answer.call_on_close(found.file.close)
        answer.headers["Content-Length"] = str(found.size)
        shown = name == REPORT and "show" in request.args
        disposition = "inline" if shown else "attachment"
        answer.headers["Content-Disposition"] = f'{disposition}; filename="{run_id}-{name}"'
        answer.headers["Content-Security-Policy"] = guard.FILE_POLICY
        return answer

    # -- acting -----------------------------------------------------------------------------

    def start(self) -> Response:
        faults = self._starter.start(request.form)
        answer = jsonify(faults=[{"field": f.field, "message": f.message} for f in faults])
        answer.status_code = 422 if faults else 202
        return answer

    def stop(self) -> Response:
        self._starter.stop()
        return Response(status=202)

    def report(self, run_id: str) -> Response:
        """Make the report of a run that is over; the answer comes when it is there."""
        folder = _folder_of(run_id)
        if folder is None:
            return _refused("no run of this process has this id", 404)
        if self._starter.busy:
            return _refused("a run is going on: the report would take CPU from it", 409)
        fault = self._reports.make(folder)
        return _refused(fault, 500) if fault else jsonify(name=REPORT)


def add_pages(web_ui: Any, environment: Any, owner: OwnerSide) -> None:
    """Add the page and the Agents tab to Locust's web server before it takes requests."""
    base_path = getattr(environment.parsed_options, "web_base_path", None)
    app = web_ui.app
    app.before_request(_refuse_other_origins)
    at = (base_path or "").rstrip("/") + PATH
    app.register_blueprint(Pages(web_ui, environment, owner).blueprint(at))
    offer_scenarios(scenario_files(str(environment.parsed_options.scenario)))
    web_ui.template_args.update(tab.template_args(f".{PATH}"))
    app.after_request(_add_rows)
    scheme, host = "https" if web_ui.tls_cert else "http", web_ui.host or "localhost"
    logger.info("agentload: live page at %s://%s:%s%s", scheme, host, web_ui.port, at)


def _refuse_other_origins() -> Response | None:
    """No page of another origin may start or stop anything here, by Locust's own routes either."""
    if request.method in ("GET", "HEAD", "OPTIONS"):
        return None
    if guard.is_same_origin(request.headers, request.host):
        return None
    return _refused("requests of other origins change nothing here", 403)


def _add_rows(response: Response) -> Response:
    """Locust keeps its answer for two seconds and gives it out again: ours is a new one."""
    if request.endpoint != "locust.request_stats" or not response.is_json:
        return response
    snapshot = current.snapshot()
    snapshots = [*([snapshot] if snapshot else []), *current.earlier()]
    return jsonify({**response.get_json(), "extended_stats": tab.extended_stats(snapshots)})


def _summary(snapshot: Snapshot) -> dict[str, Any]:
    """A run that is over, without charts."""
    return {**snapshot.to_json(), "files": listing(Path(snapshot.run_dir))}


def _folder_of(run_id: str) -> Path | None:
    """The folder of a run of this process; an id leads nowhere else."""
    for snapshot in (current.snapshot(), *current.earlier()):
        if snapshot is not None and snapshot.run_id == run_id:
            return Path(snapshot.run_dir)
    return None


def _seconds(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return -1.0


def _refused(message: str, status: int) -> Response:
    answer = jsonify(message=message)
    answer.status_code = status
    return answer
