"""Episodes of one group laid out as rows of tokens without padding.

The members of a group begin with the same prompt, so a micro-batch holds it once:

    tokens     P P P P | a a a | b b b b b | c c
    positions  0 1 2 3 | 4 5 6 | 4 5 6 7 8 | 4 5
    attends    itself  | P + itself, each     ...

Each bar starts a Span. A span attends to itself causally and to its prefix (here the prompt)
entirely, which is what the unpacked sequences do; gradients are therefore exact, while the
prompt is computed once instead of once a member. Tokens after the last action predict nothing
and are left out. Packing never leaves the group, so what a group contributes does not depend on
which other groups have arrived.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np
import torch
from torch import Tensor

from tbrl.errors import InvariantError
from tbrl.learner.distributed import SequenceShards
from tbrl.types import Episode


@dataclass(frozen=True, slots=True)
class Span:
    """A run of tokens of a micro-batch and the run that it continues."""

    start: int
    length: int
    prefix_start: int = 0
    prefix_length: int = 0
    """Length 0: the span begins a sequence of its own."""


@dataclass(frozen=True, slots=True)
class Sequence1D:
    """One training sequence: a context, then tokens some of which the policy sampled."""

    prompt: np.ndarray
    """int [P], P >= 1"""
    response: np.ndarray
    """int [R]"""
    mask: np.ndarray
    """bool [R]: sampled by the policy."""
    behaviour_logprobs: np.ndarray
    """float [R]"""
    advantage: float
    weight: float
    """Aggregation weight of each of its action tokens."""


@dataclass(frozen=True, slots=True)
class PackedBatch:
    """A micro-batch: T tokens that go through the model, N action tokens that are scored."""

    input_ids: Tensor
    """int64 [T]"""
    position_ids: Tensor
    """int64 [T]"""
    spans: tuple[Span, ...]
    """In order, covering all T tokens."""
    rows: Tensor
    """int64 [N]: the token whose hidden state predicts the action token (repeats where members
    share it: the prompt's last token predicts every member's first)."""
    targets: Tensor
    """int64 [N]: the action tokens."""
    behaviour_logprobs: Tensor
    """float32 [N]"""
    advantages: Tensor
    """float64 [N]"""
    weights: Tensor
    """float64 [N]"""
    sequence: SequenceShards | None = None
    """Set when this is one rank's part (see sequence.py): T and N are this rank's, `spans` those
    of the whole micro-batch."""

    @property
    def tokens(self) -> int:
        return self.input_ids.shape[0]

    @property
    def action_tokens(self) -> int:
        return self.targets.shape[0]

    def to(self, device: torch.device | str) -> PackedBatch:
        """The same micro-batch on a device (itself when it is there)."""
        moved = {
            name: getattr(self, name).to(device, non_blocking=True)
            for name in self.__dataclass_fields__
            if name not in ("spans", "sequence")
        }
        return replace(self, **moved)


def sequences_of(episode: Episode, advantage: float, weight: float) -> list[Sequence1D]:
    """Training sequences of an episode: one, or one per segment.

    A further segment stands alone (it holds its own rendered context, mask 0); raises
    InvariantError where it begins with a sampled token, since nothing would predict it.
    """
    bounds = [0, *episode.segments, len(episode.response_ids)]
    result = []
    for index, (start, end) in enumerate(pairwise(bounds)):
        mask = np.asarray(episode.action_mask[start:end], dtype=bool)
        prompt, response = episode.prompt_ids, episode.response_ids[start:end]
        logprobs = episode.behaviour_logprobs[start:end]
        if index:
            context = int(np.argmax(mask)) if mask.any() else len(mask)
            if context == 0:
                raise InvariantError(
                    f"segment {index} of {episode.key} begins with a sampled token"
                )
            prompt, response = response[:context], response[context:]
            mask, logprobs = mask[context:], logprobs[context:]
        if len(prompt) == 0:
            raise InvariantError(f"episode {episode.key} has no prompt")
        if mask.any():
            last = int(np.flatnonzero(mask)[-1]) + 1
            result.append(
                Sequence1D(prompt, response[:last], mask[:last], logprobs[:last], advantage, weight)
            )
    return result


def pack_sequences(
    sequences: Sequence[Sequence1D], budget: int, share_prompt: bool = True
) -> list[PackedBatch]:
    """Micro-batches of at most `budget` tokens, in the order given.

    A sequence longer than the budget gets a micro-batch of its own. With `share_prompt`, runs of
    sequences with equal prompts hold the prompt once per micro-batch.
    """
    batches: list[PackedBatch] = []
    layout = _Layout(share_prompt)
    for sequence in sequences:
        if layout.sequences and layout.length + layout.cost(sequence) > budget:
            batches.append(layout.build())
            layout = _Layout(share_prompt)
        layout.add(sequence)
    if layout.sequences:
        batches.append(layout.build())
    return batches


class _Layout:
    """One micro-batch being filled."""

    def __init__(self, share_prompt: bool) -> None:
        self.share_prompt = share_prompt
        self.length = 0
        self.sequences: list[Sequence1D] = []
        self.spans: list[Span] = []
        self.ids: list[np.ndarray] = []
        self.positions: list[np.ndarray] = []
        self.rows: list[np.ndarray] = []
        self.prompt_span: Span | None = None

    def shares(self, sequence: Sequence1D) -> bool:
        return (
            self.share_prompt
            and self.prompt_span is not None
            and np.array_equal(self.sequences[-1].prompt, sequence.prompt)
        )

    def cost(self, sequence: Sequence1D) -> int:
        """Tokens that adding the sequence would add (its last token is only a target)."""
        own = len(sequence.response) - 1
        return own if self.shares(sequence) else own + len(sequence.prompt)

    def add(self, sequence: Sequence1D) -> None:
        prompt, inputs = sequence.prompt, sequence.response[:-1]
        if not self.share_prompt:
            start = self.length
            self._append(np.concatenate([prompt, inputs]), 0, Span(start, 0))
            predictors = start + len(prompt) - 1 + np.arange(len(sequence.response))
        else:
            if not self.shares(sequence):
                self.prompt_span = self._append(prompt, 0, Span(self.length, 0))
            assert self.prompt_span is not None
            shared, start = self.prompt_span, self.length
            if len(inputs):
                span = Span(start, 0, shared.start, shared.length)
                self._append(inputs, len(prompt), span)
            predictors = start - 1 + np.arange(len(sequence.response))
            predictors[0] = shared.start + shared.length - 1
        self.rows.append(predictors[sequence.mask])
        self.sequences.append(sequence)

    def _append(self, ids: np.ndarray, first_position: int, span: Span) -> Span:
        span = replace(span, length=len(ids))
        self.ids.append(ids)
        self.positions.append(np.arange(first_position, first_position + len(ids)))
        self.spans.append(span)
        self.length += len(ids)
        return span

    def build(self) -> PackedBatch:
        counts = [int(s.mask.sum()) for s in self.sequences]
        targets = np.concatenate([s.response[s.mask] for s in self.sequences])
        behaviour = np.concatenate([s.behaviour_logprobs[s.mask] for s in self.sequences])
        if not np.isfinite(behaviour).all():
            raise InvariantError("a sampled token has no finite behaviour logprob")
        return PackedBatch(
            input_ids=_int64(np.concatenate(self.ids)),
            position_ids=_int64(np.concatenate(self.positions)),
            spans=tuple(self.spans),
            rows=_int64(np.concatenate(self.rows)),
            targets=_int64(targets),
            behaviour_logprobs=torch.from_numpy(behaviour.astype(np.float32)),
            advantages=_repeated([s.advantage for s in self.sequences], counts),
            weights=_repeated([s.weight for s in self.sequences], counts),
        )


def dummy_batch(device: torch.device | str = "cpu") -> PackedBatch:
    """Two tokens that weigh zero: keeps a rank's collectives aligned with the others'."""
    return PackedBatch(
        input_ids=torch.zeros(2, dtype=torch.int64),
        position_ids=torch.arange(2),
        spans=(Span(0, 2),),
        rows=torch.zeros(1, dtype=torch.int64),
        targets=torch.zeros(1, dtype=torch.int64),
        behaviour_logprobs=torch.zeros(1),
        advantages=torch.zeros(1, dtype=torch.float64),
        weights=torch.zeros(1, dtype=torch.float64),
    ).to(device)


def _int64(values: np.ndarray) -> Tensor:
    return torch.from_numpy(np.ascontiguousarray(values, dtype=np.int64))


def _repeated(values: list[float], counts: list[int]) -> Tensor:
    return torch.from_numpy(np.repeat(np.asarray(values, np.float64), counts))
