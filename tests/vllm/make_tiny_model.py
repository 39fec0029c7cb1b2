"""Makes a random-weight model directory that a real vLLM serves on a CPU.

    VENV/bin/python tests/vllm/make_tiny_model.py DIRECTORY [--sliding-window TOKENS]
        [--hidden-size N]

Nothing is downloaded: the byte-level BPE tokenizer is trained on the running interpreter's own
standard library, the weights are drawn from a fixed seed. The generated text is noise; scheduling,
KV cache, streaming, metrics are vLLM's own. Needs the environment of `install.py`.
"""

from __future__ import annotations

import argparse
import json
import sysconfig
from collections.abc import Iterator
from pathlib import Path
from typing import Any

VOCABULARY = 8192
CORPUS_CHARS = 6_000_000  # about the vocabulary's saturation; 10 s of CPU
MAX_MODEL_LEN = 131_072
HIDDEN_SIZE = 64
HEAD_DIM = 32  # the least that vLLM's CPU attention kernel takes
SEED = 0

SPECIAL_TOKENS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
PAD_ID, END_ID = 0, 2

# The ChatML shape: every message closes with a special token, which no BPE merge crosses.
CHAT_TEMPLATE = """\
{%- if tools %}<|im_start|>tools
{{ tools | tojson }}<|im_end|>
{% endif %}
{%- for message in messages %}<|im_start|>{{ message.role }}
{{ message.content or '' }}
{%- if message.tool_calls %}{{ message.tool_calls | tojson }}{% endif %}<|im_end|>
{% endfor %}
{%- if add_generation_prompt %}<|im_start|>assistant
{% endif %}"""


def make_model(directory: Path, sliding_window: int | None, hidden_size: int) -> None:
    """Write tokenizer, configuration and weights; a finished directory is left as it is.

    With `sliding_window` each token attends to that many tokens before it, so prefill costs grow
    with the prompt instead of its square: for prompts of 80,000 tokens and more.
    """
    if (directory / "config.json").exists():
        return
    directory.mkdir(parents=True, exist_ok=True)
    _train_tokenizer(directory)
    # Last: config.json marks the directory finished.
    _write_weights(directory, sliding_window, hidden_size)


def _corpus() -> Iterator[str]:
    left = CORPUS_CHARS
    library = Path(sysconfig.get_paths()["stdlib"])
    for path in sorted(library.rglob("*.py")):
        if left <= 0:
            return
        if "site-packages" not in path.parts:
            text = path.read_text(encoding="utf-8", errors="ignore")[:left]
            left -= len(text)
            yield text


def _train_tokenizer(directory: Path) -> None:
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=list(SPECIAL_TOKENS),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(_corpus(), trainer)
    tokenizer.save(str(directory / "tokenizer.json"))
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "eos_token": SPECIAL_TOKENS[END_ID],
        "pad_token": SPECIAL_TOKENS[PAD_ID],
        "model_max_length": MAX_MODEL_LEN,
        "clean_up_tokenization_spaces": False,
        "chat_template": CHAT_TEMPLATE,
    }
    (directory / "tokenizer_config.json").write_text(json.dumps(settings, indent=1))


def _write_weights(directory: Path, sliding_window: int | None, hidden_size: int) -> None:
    import torch
    from transformers import AutoModelForCausalLM, LlamaConfig, MistralConfig

    torch.manual_seed(SEED)
    shape: dict[str, Any] = {
        "vocab_size": VOCABULARY,
        "hidden_size": hidden_size,
        "intermediate_size": 3 * hidden_size,
        "num_hidden_layers": 1,
        "num_attention_heads": 1,
        "num_key_value_heads": 1,
        "head_dim": HEAD_DIM,
        "max_position_embeddings": MAX_MODEL_LEN,
        "tie_word_embeddings": True,
        "bos_token_id": PAD_ID,
        "pad_token_id": PAD_ID,
        "eos_token_id": END_ID,
    }
    if sliding_window:
        config = MistralConfig(sliding_window=sliding_window, **shape)
    else:
        config = LlamaConfig(**shape)
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    model.save_pretrained(directory)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("directory", type=Path)
    parser.add_argument("--sliding-window", type=int, metavar="TOKENS")
    parser.add_argument("--hidden-size", type=int, default=HIDDEN_SIZE, metavar="N")
    given = parser.parse_args()
    make_model(given.directory, given.sliding_window, given.hidden_size)


if __name__ == "__main__":
    main()
