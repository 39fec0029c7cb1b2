"""Where token ids come from: the tokenizer of the server or one of this machine."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from importlib import import_module
from typing import Any

from agentload.client.base_url import server_root
from agentload.client.deadlines import Deadlines
from agentload.client.errors import RequestFailure
from agentload.client.parsing_turn import PARSING
from agentload.client.token_body import Encode, Tokenizer
from agentload.client.transport import Client
from agentload.client.vocabulary import Vocabulary

SERVER = "server"
# One call takes about 1 ms: of the server the reading of its answer, of this machine the encoding.
_SERVER_SLICE_CHARS = 100_000
_LOCAL_SLICE_CHARS = 20_000


class NoTokenizerError(Exception):
    """A local tokenizer that cannot be had; the text has the mend."""


@dataclass(frozen=True, slots=True)
class TokenSource:
    """The tokenizer of a run: `server`, or the name of a local one."""

    name: str
    model: str
    cuts: bool  # see `Tokenizer`; asked once, before the run

    def check(self) -> None:
        """Raise `NoTokenizerError` if this machine lacks it; loads it, which takes a moment."""
        if self.name != SERVER:
            local_encoder(self.name)

    def tokenizer(self, client: Client, deadlines: Deadlines | None = None) -> Tokenizer:
        """The tokenizer for the sessions of one user. Raises `NoTokenizerError`."""
        if self.name == SERVER:
            encode = server_encoder(client, self.model, deadlines)
            return Tokenizer(encode, self.cuts, _SERVER_SLICE_CHARS)
        return Tokenizer(local_encoder(self.name), self.cuts, _LOCAL_SLICE_CHARS)


def server_encoder(client: Client, model: str, deadlines: Deadlines | None = None) -> Encode:
    """The server's own tokenizer by `/tokenize`; calls raise `RequestFailure`."""
    url = server_root(client.settings.base_url) + "/tokenize"

    def encode(text: str) -> list[int]:
        body = {"model": model, "prompt": text, "add_special_tokens": False}
        answer = client.ask("POST", url, body, deadlines)
        with PARSING:
            page = answer.json()
            ids = page.get("tokens") if isinstance(page, dict) else None
            if not isinstance(ids, list) or not _are_ids(ids):
                raise RequestFailure("not_json", f"{url} gave no list of token ids")
            PARSING.pause()
        return ids

    return encode


def _are_ids(values: list[Any]) -> bool:
    return set(map(type, values)) <= {int} and min(values, default=0) >= 0


@cache
def local_encoder(encoding: str) -> Encode:
    """A tokenizer of this machine (extra `tokenizer`), by its name in `scenario.model`.

    Raises `NoTokenizerError`.
    """
    try:
        quicktok: Any = import_module("quicktok")
    except ImportError:
        raise NoTokenizerError(
            "no local tokenizer; to mend: pip install 'agentload[tokenizer]', or use the server's"
        ) from None
    try:
        encoder = Vocabulary(quicktok.get_encoding(encoding))
    except Exception as error:  # the package raises what its C++ part does
        raise NoTokenizerError(f"tokenizer {encoding!r}: {error}") from None

    def encode(text: str) -> list[int]:
        with PARSING:  # sessions that encode at once take turns, and the loop goes round between
            ids = encoder.encode(text)
            PARSING.pause()
        return ids

    return encode
