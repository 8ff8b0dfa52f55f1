"""What plugs into `replay_step`: grading by a grader, updating by a learner."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import asdict

import torch

from tbrl.engine.digest import WeightDigest
from tbrl.interfaces import Grader
from tbrl.learner.learner import GrpoLearner
from tbrl.replay.comparison import Updated
from tbrl.replay.step import Regrade, Update
from tbrl.types import Episode, EpisodeGroup, Outcome, TerminalState


def final_text(episode: Episode) -> str:
    """The last visible assistant text: what rubrics are asked about."""
    texts = [turn.text for turn in episode.turns if turn.role == "assistant" and turn.text]
    return texts[-1] if texts else ""


def regrade_with(grader: Grader) -> Regrade:
    """Grades the recorded terminal states and last texts. Call outside a running event loop."""

    async def regrade(episode: Episode) -> Outcome:
        # The number of writing calls is not recorded; no grade depends on it.
        terminal = TerminalState(episode.state_hash, episode.effects, writes=0)
        grade = await grader.grade(episode.task_ref, terminal, final_text(episode))
        return grade.outcome

    async def grade_all(episodes: Sequence[Episode]) -> list[Outcome]:
        return list(await asyncio.gather(*map(regrade, episodes)))

    return lambda episodes: asyncio.run(grade_all(episodes))


def update_with(learner: GrpoLearner, engine_dtype: torch.dtype) -> Update:
    """Takes the recorded steps again, in order, on a learner of one rank that holds the weights
    from before the first of them. Digests are those of the weights as sent to the engines."""

    def digest() -> str:
        state = WeightDigest()
        for name, tensor in learner.weights(engine_dtype):
            state.add(name, tensor)
        return state.hexdigest()

    def update(step: int, groups: Sequence[tuple[int, EpisodeGroup]]) -> Updated:
        before = digest()
        learner.begin_step()
        for slot, group in groups:
            learner.add_group(group, slot)
        stats = learner.finish()
        numbers = {
            name: float(value)
            for name, value in asdict(stats).items()
            if isinstance(value, int | float) and name not in ("no_op", "micro_batches")
        }
        return Updated(stats.no_op, before, digest(), numbers)

    return update
