"""The stages of a run as Locust asks for them."""

from __future__ import annotations

from collections.abc import Callable

from locust import LoadTestShape

from agentload.swarm.stages import Step

Tick = tuple[int, float]


class StageShape(LoadTestShape):
    """Hands Locust the users of the stage that is on; None ends the run.

    `step` is called about once a second and may raise StopTest before the first stage.
    """

    def __init__(self, step: Callable[[], Step | None], use_common_options: bool) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.use_common_options = use_common_options  # type: ignore[misc]
        self._step = step
        self._last: Tick | None = None

    def reset_time(self) -> None:
        """A run begins: its first tick stands for itself."""
        super().reset_time()  # type: ignore[no-untyped-call]
        self._last = None

    def tick(self) -> Tick | None:
        """The users wanted now and how fast to get there.

        The same number of users gives the same tuple: a new one makes Locust dispatch again.
        """
        step = self._step()
        if step is None:
            return None
        if self._last is None or self._last[0] != step.users:
            self._last = (step.users, step.rate)
        return self._last
