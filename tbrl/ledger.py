"""Conservation ledger of a step: nothing that was dispatched is lost or counted twice.

    dispatched = trained + zero_variance + failed + cancelled        in groups, episodes and tokens

    controller: dispatched(assignment, episodes)   when a group goes out
                received(assignment, summary)      when its summary comes back (also a late one)
                settled(event)                     each fate that the schedule announces
                close()                            asserts the equation and returns the row

The two sides are kept apart: what went out and came back is counted when it moves, the four
accounts when the schedule settles a fate. The row also says what filtering and retrying favour:
failures by kind, place and length of the episode, lengths by account, and acceptance per task.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field

from tbrl.errors import InvariantError
from tbrl.schedule import Assignment, Event, Fate
from tbrl.types import Failed, GroupSummary, JsonObject

ACCOUNTS: dict[Fate, str] = {
    "committed": "trained",
    "zero_variance": "zero_variance",
    "failed": "failed",
    "cancelled": "cancelled",
}
"""The account that each fate is booked in."""


@dataclass(slots=True)
class Account:
    """What ended in one of the four ways."""

    groups: int = 0
    episodes: int = 0
    tokens: int = 0
    """Prompt and response tokens of the final episodes plus those of failed tries."""
    lengths: dict[str, int] = field(default_factory=dict)
    """Episodes by length bucket, e.g. `256-511`: shows whether an account favours short ones."""


@dataclass(frozen=True, slots=True)
class FailureCount:
    """Failures that look alike."""

    kind: str
    where: str
    length: str
    """Bucket of the episode's tokens when it failed."""
    repaired: bool
    """True: a re-run succeeded; False: the group was given up."""
    count: int


@dataclass(frozen=True, slots=True)
class LedgerRow:
    """One line of ledger.jsonl."""

    step: int
    dispatched_groups: int
    dispatched_episodes: int
    received_tokens: int
    unreported_groups: int
    """Cancelled groups that never answered: their tokens are unknown and count 0."""
    accounts: dict[str, Account]
    failures: tuple[FailureCount, ...]
    retries: int
    """Failed runs that were repeated."""
    tasks: dict[str, dict[str, int]]
    """{task_ref: {account: groups}}, plus `solved` / `unsolved` for zero-variance groups."""

    def to_json(self) -> JsonObject:
        return asdict(self)


def length_bucket(tokens: int) -> str:
    """Power-of-two bucket of a token count: `0`, `1`, `2-3`, `4-7`, ..."""
    if tokens < 2:
        return str(tokens)
    low = 1 << (tokens.bit_length() - 1)
    return f"{low}-{2 * low - 1}"


def _tokens(summary: GroupSummary) -> int:
    return summary.total_tokens + summary.wasted_tokens


class StepLedger:
    """Opened with the step, closed when the step is complete."""

    def __init__(self, step: int) -> None:
        self._step = step
        self._out: dict[Assignment, int] = {}
        """Dispatched: episodes by assignment."""
        self._back: dict[Assignment, GroupSummary] = {}
        self._fates: dict[Assignment, Fate] = {}
        self._received_tokens = 0

    def dispatched(self, assignment: Assignment, episodes: int) -> None:
        """Raises InvariantError when the same assignment goes out twice."""
        self._require(assignment not in self._out, f"{assignment} is dispatched twice")
        self._require(assignment.step == self._step, f"{assignment} is not of step {self._step}")
        self._out[assignment] = episodes

    def received(self, assignment: Assignment, summary: GroupSummary) -> None:
        """Raises InvariantError for an answer to nothing, a second answer, or another task's."""
        self._require(assignment in self._out, f"{assignment} answers but was not dispatched")
        self._require(assignment not in self._back, f"{assignment} answers twice")
        identity = (summary.step, summary.slot, summary.attempt, summary.task_ref)
        expected = (assignment.step, assignment.slot, assignment.attempt, assignment.task_ref)
        self._require(identity == expected, f"{assignment} is answered by {identity}")
        episodes = len(summary.rewards) + len(summary.failures)
        self._require(
            episodes == self._out[assignment],
            f"{assignment} went out with {self._out[assignment]} episodes, {episodes} came back",
        )
        self._back[assignment] = summary
        self._received_tokens += _tokens(summary)

    def settled(self, event: Event) -> None:
        """Raises InvariantError for a second fate, or a fate that needs an answer without one."""
        assignment = event.assignment
        self._require(assignment in self._out, f"{assignment} is settled but was not dispatched")
        self._require(assignment not in self._fates, f"{assignment} is settled twice")
        self._require(
            event.fate == "cancelled" or assignment in self._back,
            f"{assignment} is {event.fate} without an answer",
        )
        self._fates[assignment] = event.fate

    def settle(self, events: Iterable[Event]) -> None:
        for event in events:
            self.settled(event)

    def close(self, reported_tokens: int | None = None) -> LedgerRow:
        """The step's row. `reported_tokens` is the same total counted by the rollout workers
        themselves, where the caller has it. Raises InvariantError when the equation breaks."""
        accounts = {name: Account() for name in ACCOUNTS.values()}
        for assignment, fate in self._fates.items():
            self._book(accounts[ACCOUNTS[fate]], assignment)
        groups = sum(account.groups for account in accounts.values())
        episodes = sum(account.episodes for account in accounts.values())
        tokens = sum(account.tokens for account in accounts.values())
        self._balance("groups", len(self._out), groups)
        self._balance("episodes", sum(self._out.values()), episodes)
        self._balance("tokens", self._received_tokens, tokens)
        if reported_tokens is not None:
            self._balance("tokens reported by workers", reported_tokens, tokens)
        return LedgerRow(
            step=self._step,
            dispatched_groups=len(self._out),
            dispatched_episodes=episodes,
            received_tokens=tokens,
            unreported_groups=len(self._out) - len(self._back),
            accounts=accounts,
            failures=self._failures(),
            retries=sum(len(summary.retried) for summary in self._back.values()),
            tasks=self._tasks(),
        )

    def _book(self, account: Account, assignment: Assignment) -> None:
        account.groups += 1
        account.episodes += self._out[assignment]
        summary = self._back.get(assignment)
        if summary is not None:
            account.tokens += _tokens(summary)
            for bucket in map(length_bucket, summary.episode_tokens):
                account.lengths[bucket] = account.lengths.get(bucket, 0) + 1

    def _failures(self) -> tuple[FailureCount, ...]:
        counts: Counter[tuple[str, str, str, bool]] = Counter()

        def count(failures: tuple[Failed, ...], repaired: bool) -> None:
            for failure in failures:
                bucket = length_bucket(failure.tokens)
                counts[(failure.kind, failure.where, bucket, repaired)] += 1

        for summary in self._back.values():
            count(summary.failures, False)
            count(summary.retried, True)
        return tuple(FailureCount(*key, number) for key, number in sorted(counts.items()))

    def _tasks(self) -> dict[str, dict[str, int]]:
        tasks: dict[str, Counter[str]] = {}
        for assignment, fate in self._fates.items():
            counts = tasks.setdefault(assignment.task_ref, Counter())
            counts[ACCOUNTS[fate]] += 1
            if fate == "zero_variance":
                solved = self._back[assignment].rewards[0] > 0
                counts["solved" if solved else "unsolved"] += 1
        return {task_ref: dict(counts) for task_ref, counts in sorted(tasks.items())}

    def _balance(self, what: str, dispatched: int, booked: int) -> None:
        self._require(
            dispatched == booked,
            f"ledger of step {self._step}: {dispatched} {what} dispatched, {booked} booked",
        )

    def _require(self, holds: bool, otherwise: str) -> None:
        if not holds:
            raise InvariantError(otherwise)
