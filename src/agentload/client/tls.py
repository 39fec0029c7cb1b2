"""TLS over bytes in memory, so that the hub reads the raw socket with its kernel stamps."""

from __future__ import annotations

import ssl

READ_BYTES = 65_536


class TlsChannel:
    """One client side of a TLS session; raises `ssl.SSLError`."""

    def __init__(self, context: ssl.SSLContext, host: str) -> None:
        self._in = ssl.MemoryBIO()
        self._out = ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._in, self._out, server_hostname=host)

    def handshake(self) -> bool:
        """One step; True when done. Send `outgoing` after each step."""
        try:
            self._tls.do_handshake()
        except ssl.SSLWantReadError:
            return False
        return True

    def receive(self, data: bytes) -> None:
        """Bytes from the network; empty means the other side closed."""
        if data:
            self._in.write(data)
        else:
            self._in.write_eof()

    def decrypt(self, data: bytes) -> bytes:
        """The plain bytes that these network bytes complete, possibly none."""
        self._in.write(data)
        plain = []
        while True:
            try:
                part = self._tls.read(READ_BYTES)
            except ssl.SSLWantReadError:
                break
            except ssl.SSLZeroReturnError:  # close_notify; the socket's end follows
                break
            if not part:
                break
            plain.append(part)
        return b"".join(plain)

    def encrypt(self, data: bytes) -> bytes:
        """The network bytes that carry these plain bytes."""
        self._tls.write(data)
        return self._out.read()

    def outgoing(self) -> bytes:
        """Handshake bytes to send now."""
        return self._out.read()
