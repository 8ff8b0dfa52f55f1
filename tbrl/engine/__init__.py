"""vLLM: the engine wrapper, weight transfer into it, and the digests that prove it."""
