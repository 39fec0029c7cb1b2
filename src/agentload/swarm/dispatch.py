"""Which worker runs which users: the same ones from the start of a run to its end."""

from __future__ import annotations

from typing import Any

import gevent
import locust.runners
from locust.dispatch import UsersDispatcher

NEVER = 10**9  # heartbeats


class SettledUsers(UsersDispatcher):
    """Users stay with the worker they were dealt to, whatever becomes of the others.

    A worker that went missing may be cut off and still load, and one that gives up users lets their
    streams end first. So users that are dealt out anew are on top of those for a while, and the
    target sees more than the plan says. A run that lost a worker is invalid either way; one that
    gained a worker goes on as it began.
    """

    def add_worker(self, worker_node: Any) -> None:
        """It came back to its own users, or it is new and gets none in this run."""

    def remove_worker(self, worker_node: Any) -> None:
        """Its users are gone, and not replaced."""


def settle_users(environment: Any, runner: Any) -> None:
    """Make a master deal out users when the stages say so, and never otherwise."""
    environment.dispatcher_class = SettledUsers
    # Locust forgets a worker that is missing for a minute, and then deals out all users anew.
    locust.runners.HEARTBEAT_DEAD_INTERNAL = -NEVER
    locust_start = runner.start

    def start(*args: Any, **more: Any) -> None:
        """Locust also starts by itself when a worker comes, goes or comes back. In the moment in
        which the run stops that would start all users again."""
        if gevent.getcurrent() is runner.shape_greenlet:
            locust_start(*args, **more)

    runner.start = start


def forget_missing(runner: Any) -> None:
    """Between two runs: a worker without heartbeat is no worker of the next one.

    While Locust knows one, it thinks that the run is still stopping.
    """
    for client in list(runner.clients.missing):
        del runner.clients[client.id]
    runner.check_stopped()
