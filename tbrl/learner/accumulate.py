"""Streaming accumulation: groups enter as they are accepted, the division comes at the end.

In slot order a group waits until all smaller slots of this rank have entered, so the sum is
bitwise independent of arrival; in arrival order nothing waits and the sum differs by rounding.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from tbrl.errors import InvariantError
from tbrl.learner.advantages import episode_advantages
from tbrl.learner.engine import LearnerEngine
from tbrl.learner.packing import PackedBatch, pack_sequences, sequences_of
from tbrl.types import EpisodeGroup


@dataclass(frozen=True, slots=True)
class Aggregation:
    """How token losses are averaged, as a weight per token and one divisor per step."""

    kind: str = "token-mean"
    """`token-mean`: every token counts the same. `rollout-mean`: every rollout does, its tokens
    1 / length each. `constant-length`: every rollout's token sum over one constant."""
    constant_length: int = 0

    def weight(self, action_tokens: int) -> float:
        """Weight of each token of an episode with that many action tokens."""
        if self.kind == "token-mean":
            return 1.0
        return 1.0 / (self.constant_length if self.kind == "constant-length" else action_tokens)

    def share(self, action_tokens: int) -> float:
        """What the episode adds to the step's divisor."""
        if action_tokens == 0:
            return 0.0
        return float(action_tokens) if self.kind == "token-mean" else 1.0


@dataclass(frozen=True, slots=True)
class PackingSettings:
    """How a group becomes micro-batches."""

    aggregation: Aggregation = Aggregation()
    divide_by_std: bool = False
    micro_batch_tokens: int = 4096
    share_prompt: bool = True


@dataclass(frozen=True, slots=True)
class GroupBatches:
    """A group ready for the engine."""

    batches: tuple[PackedBatch, ...]
    divisor: float
    """Its share of the step's divisor."""
    action_tokens: int


def prepare_group(group: EpisodeGroup, settings: PackingSettings) -> GroupBatches:
    """Advantages, aggregation weights and packing of a group. A failed member adds nothing."""
    advantages = episode_advantages(group, settings.divide_by_std)
    sequences, divisor, tokens = [], 0.0, 0
    for episode, advantage in zip(group.episodes, advantages.values, strict=True):
        if advantage is None or episode.action_tokens == 0:
            continue
        weight = settings.aggregation.weight(episode.action_tokens)
        sequences += sequences_of(episode, advantage, weight)
        divisor += settings.aggregation.share(episode.action_tokens)
        tokens += episode.action_tokens
    batches = pack_sequences(sequences, settings.micro_batch_tokens, settings.share_prompt)
    return GroupBatches(tuple(batches), divisor, tokens)


class StepAccumulator:
    """Feeds an engine with one step's groups.

    Owns the order and the queue; the engine owns the gradient. Where the engine cannot run at its
    own pace (aligned ranks) everything queues until `finish`.
    """

    def __init__(
        self,
        engine: LearnerEngine,
        settings: PackingSettings,
        order: str = "slot",
        keep_batches: bool = False,
    ) -> None:
        self.engine, self.settings, self.order = engine, settings, order
        self.keep_batches = keep_batches
        self.rank, self.world = engine.ranks.data_rank, engine.ranks.data_world
        sequence = engine.ranks.sequence
        self.counts = sequence is None or sequence.rank == 0
        """Ranks that share a micro-batch count it once."""
        self.waiting: dict[int, GroupBatches] = {}
        self.seen: set[int] = set()
        self.next_slot = self.rank
        self.done: list[tuple[PackedBatch, Tensor]] = []
        self.divisor = 0.0
        self.action_tokens = 0

    def add(self, group: EpisodeGroup, slot: int) -> None:
        """Take the accepted group of a slot; each slot once, on its own rank
        (slot % data_world; with sequence parallelism on all ranks of the sequence group)."""
        if slot % self.world != self.rank or slot in self.seen:
            raise InvariantError(
                f"slot {slot} does not belong here: rank {self.rank}, seen {self.seen}"
            )
        self.seen.add(slot)
        self.waiting[slot] = prepare_group(group, self.settings)
        if self.engine.open and self.engine.capabilities.own_pace:
            self.drain()

    def drain(self) -> None:
        """Accumulate what the order allows."""
        if self.order == "arrival":
            for slot in list(self.waiting):
                self._enter(self.waiting.pop(slot))
            return
        while self.next_slot in self.waiting:
            self._enter(self.waiting.pop(self.next_slot))
            self.next_slot += self.world

    def _enter(self, prepared: GroupBatches) -> None:
        for batch in prepared.batches:
            self._run(batch)
        self._count(prepared)

    def _run(self, batch: PackedBatch | None) -> None:
        result = self.engine.accumulate(batch)
        if self.keep_batches and batch is not None and result is not None:
            self.done.append((batch, result.logprobs))

    def _count(self, prepared: GroupBatches) -> None:
        if self.counts:
            self.divisor += prepared.divisor
            self.action_tokens += prepared.action_tokens

    def finish(self) -> float:
        """Accumulate the rest and return the global divisor. Collective.

        Slots that never came are passed over: what is here is what the step trains on.
        """
        rest = [self.waiting.pop(slot) for slot in sorted(self.waiting)]
        if self.engine.capabilities.own_pace:
            for prepared in rest:
                self._enter(prepared)
        else:
            batches = [batch for prepared in rest for batch in prepared.batches]
            for index in range(self.agreed_count(len(batches))):
                self._run(batches[index] if index < len(batches) else None)
            for prepared in rest:
                self._count(prepared)
        return self.engine.ranks.sum([self.divisor])[0]

    def repeat(self) -> None:
        """Accumulate the step's micro-batches again, against the kept old logprobs. Collective."""
        count = len(self.done)
        if not self.engine.capabilities.own_pace:
            count = self.agreed_count(count)
        for index in range(count):
            batch, old = self.done[index] if index < len(self.done) else (None, None)
            self.engine.accumulate(batch, old)

    def agreed_count(self, mine: int) -> int:
        """Micro-batches that every rank runs: the largest count of any. Collective."""
        return int(self.engine.ranks.max([mine])[0])
