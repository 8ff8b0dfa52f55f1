"""The tiny policy's tokenizer: a byte-level BPE of its own.

Digits are one token each (ids are copied digit by digit), words are whole, and the scaffolding of
chat and tool calls is added tokens.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

PAD, START, END = "<|endoftext|>", "<|im_start|>", "<|im_end|>"
SPECIAL = (PAD, START, END)
SCAFFOLD = (
    "<think>",
    "</think>",
    "<tool_call>",
    "</tool_call>",
    "<tool_response>",
    "</tool_response>",
    "<DONE>",
    # A call is mostly these; the longest match wins, so the short forms catch irregular text.
    "\n<function=",
    ">\n<parameter=",
    "\n</parameter>\n<parameter=",
    "\n</parameter>\n</function>\n",
    ">\n</function>\n",
    "<function=",
    "<parameter=",
    "</parameter>",
    "</function>",
    ">\n",
    # The tool list of the system turn.
    ":integer",
    ":string",
    ":number",
    ":boolean",
    ":array",
    ")\n",
)
"""Added, but not special: decoding keeps them, whatever `skip_special_tokens` says."""

WORDS = r"\d|[A-Z](?=\d)| ?[A-Za-z_]+(?![A-Za-z_\d])|\n+|[^\sA-Za-z0-9_]+ ?|[A-Za-z_]+|\s"
"""Pre-tokens: one digit; the letter of a record id, never with the space before it; a word with
the space before it; newlines; punctuation with the space behind it; one space."""

DONE = "<DONE>"
MULTIPLE = 64


def train_tokenizer(
    texts: Iterable[str], vocab_size: int, template: str
) -> PreTrainedTokenizerFast:
    """A tokenizer with `vocab_size` ids or fewer. Deterministic in its arguments."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(WORDS), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(t, special=True, normalized=False) for t in SPECIAL])
    tokenizer.add_tokens([AddedToken(t, special=False, normalized=False) for t in SCAFFOLD])
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=[*SPECIAL],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        min_frequency=2,
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token=PAD,
        eos_token=END,
        clean_up_tokenization_spaces=False,
        model_max_length=2048,
    )
    fast.chat_template = template
    return fast


def padded_vocab(tokenizer: PreTrainedTokenizerFast) -> int:
    """Rows of the embedding: ids rounded up to a multiple of 64."""
    return -(-len(tokenizer) // MULTIPLE) * MULTIPLE


def chat_template() -> str:
    """The policy's chat template (chat_template.jinja beside this file)."""
    return (Path(__file__).parent / "chat_template.jinja").read_text()
