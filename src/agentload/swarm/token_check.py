"""Whether there is a tokenizer for prompts sent as ids, asked before any load is sent."""

from __future__ import annotations

from dataclasses import dataclass

from agentload.client.errors import RequestFailure
from agentload.client.token_body import Encode, cuts_are_safe
from agentload.client.tokenizers import SERVER, NoTokenizerError, local_encoder, server_encoder
from agentload.client.transport import Client
from agentload.scenario.model import Scenario
from agentload.swarm.bodies import token_source
from agentload.swarm.plan import InputError

_SAMPLE = "<|im_start|>user\ndef größe(x):\n    return [x, 12345]\n"


@dataclass(frozen=True, slots=True)
class IdsFound:
    """The tokenizer of the run's prompts; see `Tokenizer` for `cuts`."""

    name: str
    cuts: bool
    encode: Encode
    warnings: tuple[str, ...]


def examine_tokenizer(client: Client, scenario: Scenario, model: str) -> IdsFound | None:
    """Try the scenario's tokenizer; None where prompts are text. Raises `InputError`."""
    source = token_source(scenario, model, cuts=False)
    if source is None:
        return None
    of_server = server_encoder(client, model)
    try:
        if source.name == SERVER:
            return IdsFound(SERVER, cuts_are_safe(of_server), of_server, ())
        encode = local_encoder(source.name)
    except RequestFailure as failure:
        raise InputError(
            f"{client.settings.base_url}: wire token_ids needs the server's /tokenize, which says "
            f"{failure.error_class}: {failure}; to mend: let the gateway pass it on, or set "
            "tokenizer in the scenario to the local one of the model's family"
        ) from None
    except NoTokenizerError as error:
        raise InputError(str(error)) from None
    return IdsFound(source.name, cuts_are_safe(encode), encode, _compared(encode, of_server))


def _compared(encode: Encode, of_server: Encode) -> tuple[str, ...]:
    """What is to be said when the ids of this machine are not those of the server."""
    try:
        same = encode(_SAMPLE) == of_server(_SAMPLE)
    except RequestFailure as failure:
        return (f"the local tokenizer is not compared with the server's: {failure.error_class}",)
    if same:
        return ()
    return (
        "the local tokenizer gives other ids than the server's /tokenize: prompts have the planned"
        " numbers of tokens, but the model reads another text",
    )
