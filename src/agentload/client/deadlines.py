"""When a request has taken too long, as arithmetic on instants."""

from __future__ import annotations

from dataclasses import dataclass

from agentload.client.settings import TargetSettings
from agentload.clock import NS_PER_S


@dataclass(frozen=True, slots=True)
class Deadlines:
    """Four limits in seconds; `cancel_after_first_token_s` is the human who interrupts."""

    connect_s: float
    first_token_s: float
    between_chunks_s: float
    total_s: float
    cancel_after_first_token_s: float | None = None

    @classmethod
    def of(cls, settings: TargetSettings) -> Deadlines:
        return cls(
            settings.connect_timeout_s,
            settings.first_token_timeout_s,
            settings.between_chunks_timeout_s,
            settings.total_timeout_s,
        )

    def next_due(
        self, start_ns: int, first_token_ns: int | None, last_read_ns: int
    ) -> tuple[int, str]:
        """The next instant at which the request is stopped, and the class it then gets.

        `start_ns` is the send start. A comment counts as a read, so a silent prefill that is kept
        alive by comments is bounded by the first-token and the total limit.
        """
        dues = [(start_ns + _ns(self.total_s), "timeout_total")]
        if first_token_ns is None:
            dues.append((start_ns + _ns(self.first_token_s), "timeout_first_token"))
        else:
            dues.append((last_read_ns + _ns(self.between_chunks_s), "timeout_read"))
            if self.cancel_after_first_token_s is not None:
                due_ns = first_token_ns + _ns(self.cancel_after_first_token_s)
                dues.append((due_ns, "aborted_by_user"))
        return min(dues)


def _ns(seconds: float) -> int:
    return round(seconds * NS_PER_S)
