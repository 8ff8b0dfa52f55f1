"""Step receipts: what one optimizer step was made of and whom its weights reached.

r = StepReceipt(step=3, policy_version_before=2, policy_version_after=3, ...)
r.verify()              the engines hold what the learner holds, or InvariantError
writer.write(r.to_json())
"""

from __future__ import annotations

from dataclasses import asdict, dataclass

from tbrl.errors import InvariantError
from tbrl.types import JsonObject


@dataclass(frozen=True, slots=True)
class SlotReceipt:
    """The group that one slot committed."""

    slot: int
    attempt: int
    position: int
    """In the task stream."""
    task_ref: str
    group_digest: str
    """Content digest of the stored group (records/episodes.py)."""
    rewards: tuple[float, ...]
    """By rollout, as the controller saw them in the group's summary."""


@dataclass(frozen=True, slots=True)
class StepReceipt:
    """One line of receipts.jsonl."""

    step: int
    seed_root: int
    """Configured seed: with step, slot, attempt, rollout and turn it gives every sampling seed."""
    policy_version_before: int
    policy_version_after: int
    parameter_digest_before: str
    """Of the learner's full parameters, as sent to the engines."""
    parameter_digest_after: str
    engine_versions: dict[str, int]
    """{engine: policy version echoed after the update}"""
    engine_digests: dict[str, str]
    """{engine: parameter digest echoed after the update}"""
    cache_reset: bool
    """All engines confirmed that their prefix caches were reset."""
    action_tokens: int
    """The global token count that the loss was divided by."""
    episodes: int
    groups: int
    slots: tuple[SlotReceipt, ...]
    """In slot order."""
    no_op: bool
    """No signal in the step: no optimizer step, no new version."""
    probe_logprob_gap: float | None
    """Largest |engine - learner| logprob on the probe sequence after the update, nats; None where
    it was not measured."""
    episodes_sha256: str
    """Hash of the step's episode file."""

    def verify(self) -> None:
        """Raises InvariantError naming the engine or the number that does not hold."""
        expected = self.policy_version_before + (not self.no_op)
        self._require(
            self.policy_version_after == expected,
            f"policy version {self.policy_version_after} after the step, expected {expected}",
        )
        same = self.parameter_digest_after == self.parameter_digest_before
        self._require(same or not self.no_op, "a step without signal changed the parameters")
        for engine, version in self.engine_versions.items():
            self._require(
                version == self.policy_version_after,
                f"engine {engine} serves version {version}, expected {self.policy_version_after}",
            )
        for engine, digest in self.engine_digests.items():
            self._require(
                digest == self.parameter_digest_after,
                f"engine {engine} echoes digest {digest}, expected {self.parameter_digest_after}",
            )
        self._require(
            self.cache_reset or self.no_op, "an engine kept its prefix cache over new weights"
        )
        self._require(
            self.groups == len(self.slots), f"{self.groups} groups, {len(self.slots)} slots"
        )

    def _require(self, holds: bool, otherwise: str) -> None:
        if not holds:
            raise InvariantError(f"receipt of step {self.step}: {otherwise}")

    def to_json(self) -> JsonObject:
        return asdict(self)

    @classmethod
    def from_json(cls, row: JsonObject) -> StepReceipt:
        slots = tuple(
            SlotReceipt(**{**slot, "rewards": tuple(slot["rewards"])}) for slot in row["slots"]
        )
        return cls(**{**row, "slots": slots})
