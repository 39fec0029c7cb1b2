"""The way of rows from a worker to the master: numbered by byte, acknowledged, never twice.

A worker appends its rows to files of its own (its shard). The shard is the spool: the sender reads
from it what the master has not acknowledged, so a cut of any length costs disk and no memory, and
what a killed worker had not delivered is still on its disk. The place of a part in its file numbers
it: the master takes a part only where the one before ended.
"""

from __future__ import annotations

import hmac
import zlib
from collections.abc import Set
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from agentload.recording.csvfile import header_line
from agentload.recording.record import FILE_OF, TURNS_CSV
from agentload.recording.recorder import SHARD_ROWS, Recorder, complete_rows
from agentload.recording.relay_checks import SHARD_FILES, are_rows, is_part

BATCH_BYTES = 4_000_000  # of each file; bounds what a backlog puts into one message
RESEND_AFTER_NS = 5_000_000_000

HEADER_BYTES = {FILE_OF[t]: len(header_line(t)) for t in SHARD_ROWS}
COLUMNS_CRC = zlib.crc32(b"".join(header_line(t) for t in SHARD_ROWS))


@dataclass(slots=True)
class ShardSender:
    """The worker's side. One batch is on its way at a time; the next waits for its answer.

    With `keeps_rows` only the status goes to the master, and the shard stays where it is.
    """

    folder: Path
    run_id: str
    worker_id: str
    keeps_rows: bool = False
    token: str = ""  # of the run, see `RunSpec.rows_token`
    acked: dict[str, int] = field(default_factory=lambda: dict.fromkeys(SHARD_FILES, 0))
    refused: str | None = None
    orphaned: bool = False  # the master records this run no more, or is another one
    _seq: int = 0
    _answered_seq: int = 0
    _final_seq: int = 0  # of the first message that said the worker is done
    _sent_ns: int = 0

    def batch(self, now_ns: int, status: dict[str, Any]) -> dict[str, Any] | None:
        """The next message; None while an earlier one may still be answered.

        `status` goes along in every message, also in one without rows: it is the sign of life.
        """
        if self._seq > self._answered_seq and now_ns - self._sent_ns < RESEND_AFTER_NS:
            return None
        self._seq += 1
        self._sent_ns = now_ns
        if status.get("final") and not self._final_seq:
            self._final_seq = self._seq
        return {
            "run_id": self.run_id,
            "worker_id": self.worker_id,
            "token": self.token,
            "seq": self._seq,
            "columns": COLUMNS_CRC,
            "parts": [part for name in SHARD_FILES if (part := self._part(name))],
            "status": {**status, "sizes": self.sizes()},
        }

    def _part(self, name: str) -> tuple[str, int, bytes] | None:
        if self.keeps_rows:
            return None
        lines = _lines_from(self.folder / name, HEADER_BYTES[name] + self.acked[name])
        return (name, self.acked[name], lines) if lines else None

    def answered(self, answer: dict[str, Any]) -> bool:
        """Take the master's answer; True when there is more that can be sent at once.

        Where an answer brought nothing forward (its disk is full), the next try has to wait.
        """
        if answer.get("run_id") != self.run_id:
            return False
        self._answered_seq = max(self._answered_seq, min(int(answer["seq"]), self._seq))
        self.refused = answer.get("refused")
        self.orphaned = bool(answer.get("orphaned"))
        before = dict(self.acked)
        for name, offset in answer.get("offsets", {}).items():
            if name in self.acked:
                self.acked[name] = int(offset)
        free = self.refused is None and self._answered_seq == self._seq
        return free and self.acked != before and not (self.keeps_rows or self.delivered)

    def sizes(self) -> dict[str, int]:
        """Bytes of rows in each file of the shard."""
        return {
            name: max(0, (self.folder / name).stat().st_size - HEADER_BYTES[name])
            for name in SHARD_FILES
        }

    @property
    def delivered(self) -> bool:
        if self.keeps_rows:
            return 0 < self._final_seq <= self._answered_seq
        return self.sizes() == self.acked

    @property
    def done(self) -> bool:
        """The master has all rows, and heard that there will be no more."""
        return self.delivered and 0 < self._final_seq <= self._answered_seq

    @property
    def said_final(self) -> bool:
        return self._final_seq > 0

    def undelivered_rows(self) -> int:
        if self.keeps_rows:
            return 0
        return sum(
            complete_rows(self.folder / name, HEADER_BYTES[name] + self.acked[name])[1]
            for name in SHARD_FILES
        )


def _lines_from(path: Path, offset: int) -> bytes:
    """Whole lines from an offset on, about `BATCH_BYTES` of them, at least one if there is one."""
    with path.open("rb") as file:
        file.seek(offset)
        data = file.read(BATCH_BYTES)
        end = data.rfind(b"\n") + 1
        return data[:end] if end or len(data) < BATCH_BYTES else data + file.readline()


@dataclass(slots=True)
class Delivery:
    """What the master has of one worker: bytes and rows of each file, its last status.

    Of a worker that keeps its rows, `rows` are those it said it has, and `kept_in` where.
    """

    offsets: dict[str, int] = field(default_factory=lambda: dict.fromkeys(SHARD_FILES, 0))
    rows: dict[str, int] = field(default_factory=lambda: dict.fromkeys(SHARD_FILES, 0))
    status: dict[str, Any] = field(default_factory=dict)
    heard_ns: int = 0
    refused: str | None = None
    kept_in: str | None = None

    @property
    def complete(self) -> bool:
        """The worker said it is done, and all it had then is here."""
        here = self.kept_in is not None or self.status.get("sizes") == self.offsets
        return bool(self.status.get("final")) and here

    def heard(self, status: dict[str, Any], now_ns: int) -> None:
        self.status, self.heard_ns = status, now_ns
        if isinstance(status.get("kept_in"), str) and isinstance(status.get("kept_rows"), dict):
            self.kept_in = status["kept_in"][:300]
            self.rows = {name: _count(status["kept_rows"].get(name)) for name in SHARD_FILES}


class ShardReceiver:
    """The master's side: appends what is new to the run folder and answers where it stands.

    The port is open to whoever reaches it, so a message of another shape is refused, never raised;
    so is one without the token that only the workers of the run were told. `workers` are their
    ids; None takes any.
    """

    def __init__(
        self,
        recorder: Recorder,
        run_id: str,
        workers: Set[str] | None = None,
        token: str = "",
    ) -> None:
        self._recorder = recorder
        self._run_id = run_id
        self._workers = workers
        self._token = token
        self.closed = False
        self.deliveries: dict[str, Delivery] = {}

    def close(self) -> None:
        """The run folder is closed: what comes now stays with its worker."""
        self.closed = True

    def receive(self, message: Any, now_ns: int) -> dict[str, Any]:
        """Take one batch; the answer goes back to the worker that sent it."""
        fault = self._fault(message)
        if fault is not None:
            orphaned = _get(message, "run_id") != self._run_id
            return refusal(message, fault, orphaned=orphaned)
        if self.closed:
            return self._answer_closed(message)
        delivery = self.deliveries.setdefault(message["worker_id"], Delivery())
        if message["columns"] != COLUMNS_CRC:
            delivery.refused = "its columns differ: worker and master run different versions"
        else:
            for name, offset, lines in message["parts"]:
                self._take(delivery, name, offset, lines)
        delivery.heard(message["status"], now_ns)
        return {
            "run_id": self._run_id,
            "seq": message["seq"],
            "offsets": dict(delivery.offsets),
            "refused": delivery.refused,
        }

    def _answer_closed(self, message: dict[str, Any]) -> dict[str, Any]:
        """A last answer may have got lost: a worker hears that its rows are here, or that not."""
        delivery = self.deliveries.get(message["worker_id"], Delivery())
        answer = {"run_id": self._run_id, "seq": message["seq"], "offsets": dict(delivery.offsets)}
        kept = delivery.kept_in is not None and delivery.complete
        if kept or message["status"].get("sizes") == delivery.offsets:
            return {**answer, "refused": None}
        return {**answer, "refused": "the run is over, its folder closed", "orphaned": True}

    def kept_turns(self) -> int:
        """Turns that are recorded with the workers and not here."""
        return sum(d.rows[TURNS_CSV] for d in self.deliveries.values() if d.kept_in is not None)

    def take_shard(self, worker_id: str, folder: Path) -> int:
        """Rows of a worker's shard on this machine that were never delivered, taken from its files.

        Returns how many; 0 where there is no such folder.
        """
        delivery = self.deliveries.setdefault(worker_id, Delivery())
        taken = 0
        for name in SHARD_FILES:
            offset = delivery.offsets[name]
            try:
                lines, rows = complete_rows(folder / name, HEADER_BYTES[name] + offset)
            except OSError:
                continue
            if rows and self._take(delivery, name, offset, lines):
                taken += rows
        return taken

    def _take(self, delivery: Delivery, name: str, offset: int, lines: bytes) -> bool:
        """Append the part of `lines` that is new; nothing when rows before it are missing."""
        have = delivery.offsets[name]
        if offset > have:
            return False
        new = lines[have - offset :]
        rows = new.count(b"\n")
        if not rows or not are_rows(name, new):
            return False
        if not self._recorder.append(name, new, rows):
            return False
        delivery.offsets[name] += len(new)
        delivery.rows[name] += rows
        return True

    def _fault(self, message: Any) -> str | None:
        if not isinstance(message, dict):
            return "not a batch"
        if message.get("run_id") != self._run_id:
            return "not the run that is being recorded"
        if not all(
            isinstance(message.get(key), kind)
            for key, kind in (
                ("worker_id", str),
                ("seq", int),
                ("columns", int),
                ("parts", list),
                ("status", dict),
            )
        ):
            return "not a batch"
        if not self._is_of_the_run(message["worker_id"], message.get("token", "")):
            return "not a worker of this run"
        return None if all(map(is_part, message["parts"])) else "a part that is none"

    def _is_of_the_run(self, worker_id: str, token: Any) -> bool:
        told = isinstance(token, str) and hmac.compare_digest(token.encode(), self._token.encode())
        return told and (self._workers is None or worker_id in self._workers)


def refusal(message: Any, why: str, *, orphaned: bool) -> dict[str, Any]:
    """The answer to a batch that is not taken. `orphaned`: nor will any other of its run be."""
    return {
        "run_id": _get(message, "run_id"),
        "seq": _seq(message),
        "refused": why,
        "orphaned": orphaned,
    }


def _count(value: Any) -> int:
    return value if isinstance(value, int) and value >= 0 else 0


def _get(message: Any, key: str) -> Any:
    return message.get(key) if isinstance(message, dict) else None


def _seq(message: Any) -> int:
    seq = _get(message, "seq")
    return seq if isinstance(seq, int) else 0
