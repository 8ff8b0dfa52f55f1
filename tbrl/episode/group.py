"""One episode group: the rollouts of one task at one (step, slot, attempt).

Members run side by side. A failed member is run again with the same seeds, so that a transient
failure leaves no trace in the data; only a failure that repeats is re-salted. After `max_tries`
the failure stays and the whole group is unusable: it is never padded, never averaged over fewer.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from tbrl.types import Episode, EpisodeGroup, EpisodeKey, Failed, GroupSummary, Scored
from tbrl.usage import NO_TOKENS, RoleUsage

RunMember = Callable[[EpisodeKey, int, int], Awaitable[Episode]]
"""(key, tries, salt) -> the episode, scored or failed."""


@dataclass(frozen=True, slots=True)
class GroupResult:
    group: EpisodeGroup
    summary: GroupSummary


def salt_of(tries: int) -> int:
    """Salt of the n-th run of a key: the first re-run repeats the seeds, later ones differ."""
    return max(0, tries - 2)


async def run_group(
    task_ref: str,
    step: int,
    slot: int,
    attempt: int,
    size: int,
    max_tries: int,
    run_member: RunMember,
    unit: str = "episode",
) -> GroupResult:
    """Run all members; `unit` is what a failure re-runs: the `episode`, or the whole `group`."""
    started = time.perf_counter()
    keys = [EpisodeKey(step, slot, attempt, rollout) for rollout in range(size)]
    episodes: dict[EpisodeKey, Episode] = {}
    retried: list[Failed] = []
    wasted = 0
    wasted_usage = NO_TOKENS
    pending = keys
    for tries in range(1, max_tries + 1):
        runs = await asyncio.gather(*(run_member(key, tries, salt_of(tries)) for key in pending))
        episodes.update(zip(pending, runs, strict=True))
        failed = [key for key in keys if isinstance(episodes[key].outcome, Failed)]
        if not failed or tries == max_tries:
            break
        retried.extend(e.outcome for k in failed if isinstance((e := episodes[k]).outcome, Failed))
        pending = failed if unit == "episode" else keys
        wasted += sum(len(episodes[key].response_ids) for key in pending)
        wasted_usage = sum((episodes[key].usage for key in pending), wasted_usage)
    ordered = tuple(episodes[key] for key in keys)
    group = EpisodeGroup(step, slot, attempt, task_ref, ordered)
    seconds = time.perf_counter() - started
    return GroupResult(group, summarise(group, tuple(retried), wasted, seconds, wasted_usage))


def summarise(
    group: EpisodeGroup,
    retried: tuple[Failed, ...],
    wasted_tokens: int,
    seconds: float,
    wasted_usage: RoleUsage = NO_TOKENS,
) -> GroupSummary:
    """What the controller needs to know of a group."""
    phases: dict[str, float] = {"wall": seconds}
    for episode in group.episodes:
        for phase, value in episode.seconds.items():
            phases[phase] = phases.get(phase, 0.0) + value
    lengths = tuple(len(e.prompt_ids) + len(e.response_ids) for e in group.episodes)
    return GroupSummary(
        step=group.step,
        slot=group.slot,
        attempt=group.attempt,
        task_ref=group.task_ref,
        policy_version=group.episodes[0].policy_version,
        rewards=tuple(e.outcome.reward for e in group.episodes if isinstance(e.outcome, Scored)),
        failures=tuple(e.outcome for e in group.episodes if isinstance(e.outcome, Failed)),
        retried=retried,
        action_tokens=sum(e.action_tokens for e in group.episodes),
        total_tokens=sum(lengths),
        wasted_tokens=wasted_tokens,
        episode_tokens=lengths,
        seconds=phases,
        malformed_turns=sum(e.malformed_turns for e in group.episodes),
        finish_reasons=tuple(e.finish_reason for e in group.episodes),
        usage=sum((e.usage for e in group.episodes), NO_TOKENS),
        wasted_usage=wasted_usage,
    )
