"""Small byte-level BPE tokenizers with the test templates."""

from __future__ import annotations

from pathlib import Path

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

TEMPLATES = Path(__file__).parent / "templates"
CONTROL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
STRUCTURE = ("<think>", "</think>", "<tool_call>", "</tool_call>", "<tool_response>")
TEXT = (
    "hello he llo user assistant system tool the booking is number 123 find_booking cancel\n\n"
    "please rental mower return late fee name value parameter function arguments"
)


def toy_tokenizer(template: str | None) -> PreTrainedTokenizerFast:
    """A tokenizer with real merges (`he` + `llo` and `hello` are all tokens)."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=420,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator([TEXT] * 4, trainer)
    tokenizer.add_special_tokens([AddedToken(t, special=True) for t in CONTROL])
    tokenizer.add_tokens([AddedToken(t, special=False, normalized=False) for t in STRUCTURE])
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token="<|im_end|>",
        pad_token="<|endoftext|>",
        bos_token="<|endoftext|>",
    )
    if template is not None:
        fast.chat_template = (TEMPLATES / f"{template}.jinja").read_text()
    return fast
