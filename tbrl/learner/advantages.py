"""Group-relative advantages: the reward minus the mean of the group's scored members."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from tbrl.types import EpisodeGroup, Scored


@dataclass(frozen=True, slots=True)
class GroupAdvantages:
    """Advantages of one group; a failed member has none.

    Rewards (1, failed, 0, 0) give mean 1/3 and values (2/3, None, -1/3, -1/3).
    """

    values: tuple[float | None, ...]
    """One per member; None for a failed member, which contributes no token to the loss."""
    mean: float
    """Mean reward of the scored members; 0.0 where there is none."""
    std: float
    """Sample standard deviation (n - 1) of the scored members; 0.0 below two members."""
    scored: int
    """Members with a number."""

    @property
    def has_signal(self) -> bool:
        """False when every advantage is zero: the group moves nothing."""
        return any(value for value in self.values if value is not None)


def group_advantages(
    rewards: Sequence[float | None], divide_by_std: bool = False
) -> GroupAdvantages:
    """Advantages from rewards, None standing for a failed member (it has no vote).

    A_i = r_i - mean(r), divided by std(r) when asked (DeepSeekMath, arXiv 2402.03300, section
    4.1.2; the undivided form is that of Dr. GRPO, arXiv 2503.20783). A group without variance
    gets exact zeros rather than 0 / (0 + epsilon).
    """
    scored = [reward for reward in rewards if reward is not None]
    if not scored or min(scored) == max(scored):
        mean = scored[0] if scored else 0.0
        zeros = tuple(None if reward is None else 0.0 for reward in rewards)
        return GroupAdvantages(zeros, mean, 0.0, len(scored))
    mean = math.fsum(scored) / len(scored)
    std = math.sqrt(math.fsum((r - mean) ** 2 for r in scored) / (len(scored) - 1))
    scale = std if divide_by_std else 1.0
    values = tuple(None if reward is None else (reward - mean) / scale for reward in rewards)
    return GroupAdvantages(values, mean, std, len(scored))


def episode_advantages(group: EpisodeGroup, divide_by_std: bool = False) -> GroupAdvantages:
    """`group_advantages` of an EpisodeGroup's outcomes."""
    rewards = [
        episode.outcome.reward if isinstance(episode.outcome, Scored) else None
        for episode in group.episodes
    ]
    return group_advantages(rewards, divide_by_std)
