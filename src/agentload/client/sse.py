"""Bytes of an event stream cut into events, whatever the reads they came in."""

from __future__ import annotations

_BOM = b"\xef\xbb\xbf"
MAX_EVENT_BYTES = 16 << 20


class SseError(ValueError):
    """The bytes cannot be an event stream."""


class SseDecoder:
    """Feeds on network reads; gives the events each read completes as (name, data).

    Follows the event-stream format of the HTML standard: lines end in LF, CR or CRLF, a line that
    begins with a colon is a comment, one space after a field's colon is dropped, data lines of an
    event are joined by LF. Events without data are not given.
    """

    def __init__(self) -> None:
        self._pending = bytearray()
        self._after_cr = False
        self._at_start = True

    def feed(self, data: bytes | bytearray) -> list[tuple[bytes, bytes]]:
        """Events completed by these bytes. Raises `SseError` for one event above 16 MiB."""
        if not data:
            return []
        # Nearly every read of a token stream is one whole event of one line.
        if (
            not self._pending
            and data.startswith(b"data: ")
            and data.endswith(b"\n\n")
            and data.find(b"\n") == len(data) - 2
            and b"\r" not in data
        ):
            self._at_start = self._after_cr = False
            return [(b"", bytes(data[6:-2]))] if len(data) > 8 else []
        if self._after_cr or b"\r" in data:
            data = self._with_lf(data)
        pending = self._pending
        search_from = max(0, len(pending) - 1)
        pending += data
        if pending.find(b"\n\n", search_from) < 0:
            if len(pending) > MAX_EVENT_BYTES:
                raise SseError(f"one event is longer than {MAX_EVENT_BYTES} bytes")
            return []
        *blocks, rest = bytes(pending).split(b"\n\n")
        self._pending = bytearray(rest)
        return self._events(blocks)

    def end(self) -> list[tuple[bytes, bytes]]:
        """The last event, when the stream ended without its blank line."""
        rest, self._pending = bytes(self._pending), bytearray()
        return self._events([rest]) if rest else []

    def _with_lf(self, data: bytes | bytearray) -> bytes | bytearray:
        # A CR ends its line at once; an LF right after it, even in the next read, belongs to it.
        if self._after_cr and data[:1] == b"\n":
            data = data[1:]
        self._after_cr = data.endswith(b"\r")
        return data.replace(b"\r\n", b"\n").replace(b"\r", b"\n")

    def _events(self, blocks: list[bytes]) -> list[tuple[bytes, bytes]]:
        events = []
        for block in blocks:
            if self._at_start:
                self._at_start = False
                block = block.removeprefix(_BOM)
            if block.startswith(b"data: ") and b"\n" not in block:
                event = (b"", block[6:])
            else:
                event = _fields(block)
            if event[1]:
                events.append(event)
        return events


_STARTS = (b"data:", b"event:", b"id:", b"retry:", b":")


def is_event_stream(start: bytes, content_type: str) -> bool:
    """Whether a body is an event stream, by its first bytes (16 are enough) more than its type.

    Gateways label streams wrongly, and send JSON or HTML with the type of a stream.
    """
    start = start.removeprefix(_BOM).lstrip(b"\r\n")
    if any(field.startswith(start[: len(field)]) for field in _STARTS):
        return True
    return "text/event-stream" in content_type.lower() and start.lstrip()[:1] not in b"{[<"


def _fields(block: bytes) -> tuple[bytes, bytes]:
    name = b""
    data = []
    for line in block.split(b"\n"):
        field, _, value = line.partition(b":")
        if value[:1] == b" ":
            value = value[1:]
        if field == b"data":
            data.append(value)
        elif field == b"event":
            name = value
    return name, b"\n".join(data)
