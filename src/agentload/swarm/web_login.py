"""The login before Locust's page: one user, whose password comes from the environment."""

from __future__ import annotations

import hmac
import os
import secrets
import sys
from collections.abc import Mapping
from typing import Any

import gevent
from flask import Request, Response, redirect, request, session, url_for
from flask_login import UserMixin, current_user, login_user

USER, PASSWORD = "AGENTLOAD_WEB_USER", "AGENTLOAD_WEB_PASSWORD"
LOGIN_PATH = "/agentload/login"
WRONG_ANSWER_S = 1.0  # before a wrong password is told so: guessing takes its time
EXIT_INPUT = 2
_OPEN = ("locust.login", "locust.send_assets", "agentload_login")  # the login page itself


class _PageUser(UserMixin):  # type: ignore[misc]  # flask_login has no types
    def __init__(self, name: str) -> None:
        self.id = name


def protect(web_ui: Any, env: Mapping[str, str] = os.environ) -> None:
    """Ask for user and password before everything, where `--web-login` is given.

    Also the routes that others add. A program may send them as HTTP basic authentication. Ends the
    process when there is no password: a page that nobody can open would be no use.
    """
    if not web_ui.web_login:
        return
    user, password = (env.get(name, "").strip() for name in (USER, PASSWORD))
    if not user or not password:
        sys.stderr.write(f"agentload: --web-login needs {USER} and {PASSWORD} in the environment\n")
        sys.exit(EXIT_INPUT)

    def is_right(name: object, word: object) -> bool:
        right_name = hmac.compare_digest(str(name).encode(), user.encode())
        right_word = hmac.compare_digest(str(word).encode(), password.encode())
        return right_name and right_word

    app = web_ui.app
    app.secret_key = secrets.token_bytes(32)  # a login ends with the process
    app.config.update(SESSION_COOKIE_SAMESITE="Strict", SESSION_COOKIE_HTTPONLY=True)
    app.config["SESSION_COOKIE_SECURE"] = bool(web_ui.tls_cert)
    web_ui.login_manager.user_loader(lambda name: _PageUser(name) if name == user else None)

    @web_ui.login_manager.request_loader  # type: ignore[untyped-decorator]
    def of_basic(asked: Request) -> _PageUser | None:
        """Without it Locust's own check of its routes would send programs to the login page."""
        basic = asked.authorization
        known = basic is not None and is_right(basic.username, basic.password)
        return _PageUser(user) if known else None

    web_ui.auth_args = {"username_password_callback": LOGIN_PATH, "title": "agentload"}

    @app.before_request  # type: ignore[untyped-decorator]
    def ask() -> Any:
        basic = request.authorization
        if request.endpoint in _OPEN or current_user.is_authenticated:
            return None
        if request.method == "GET" and basic is None:
            return redirect(url_for("locust.login"))
        gevent.sleep(WRONG_ANSWER_S)
        return Response("log in first\n", 401)

    @app.route(LOGIN_PATH, methods=["POST"], endpoint="agentload_login")  # type: ignore[untyped-decorator]
    def log_in() -> Any:
        if is_right(request.form.get("username"), request.form.get("password")):
            login_user(_PageUser(user))
            return redirect(url_for("locust.index"))
        gevent.sleep(WRONG_ANSWER_S)
        session["auth_error"] = "Wrong user or password"
        return redirect(url_for("locust.login"))
