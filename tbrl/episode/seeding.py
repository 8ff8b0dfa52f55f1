"""The seeds of one episode, by what it is: a training rollout, a probe or an evaluation."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tbrl.seeds import episode_seed, evaluation_seed, evaluation_user_seed, probe_seed, user_seed
from tbrl.types import EpisodeKey


@dataclass(frozen=True, slots=True)
class EpisodeSeeds:
    turn: Callable[[int], int]
    """Agent turn -> sampling seed."""
    user: Callable[[int], int]
    """Agent turn -> seed of the user reply behind it."""


def _by_turn(function: Callable[..., int], *counters: int | str, salt: int) -> Callable[[int], int]:
    return lambda turn: function(*counters, turn, salt)


def training_seeds(root: int, key: EpisodeKey, salt: int) -> EpisodeSeeds:
    counters = (root, key.step, key.slot, key.attempt, key.rollout)
    return EpisodeSeeds(
        _by_turn(episode_seed, *counters, salt=salt), _by_turn(user_seed, *counters, salt=salt)
    )


def attempt_seeds(purpose: str, root: int, task_ref: str, attempt: int, salt: int) -> EpisodeSeeds:
    """`purpose` is `probe` or `evaluate`: the same task and attempt number differ between them."""
    turn = {"probe": probe_seed, "evaluate": evaluation_seed}[purpose]
    counters = (root, task_ref, attempt)
    return EpisodeSeeds(
        _by_turn(turn, *counters, salt=salt), _by_turn(evaluation_user_seed, *counters, salt=salt)
    )
