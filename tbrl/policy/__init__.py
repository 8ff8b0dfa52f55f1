"""The tiny policy: tokenizer, chat template, demonstrations, warm start, shipped checkpoints."""
