"""The fleet repeats what died with a worker, and does not pretend that it cost nothing."""

import asyncio
from types import SimpleNamespace

from evaluation_helpers import AGENT_USED, episode_of, scored
from ray.exceptions import RayActorError

from tbrl.actors.fleet import RolloutFleet, _Worker
from tbrl.actors.rollout_worker import RolloutSettings
from tbrl.config import EngineConfig, ModelConfig, RolloutConfig, TopologyConfig
from tbrl.episode.group import summarise
from tbrl.schedule import Assignment
from tbrl.types import EpisodeGroup, Sampling
from tbrl.usage import unanswered, unknown

EPISODE = episode_of("d/refund/0", scored(True))
SETTINGS = RolloutSettings(
    "base", ModelConfig(), EngineConfig(), TopologyConfig(), RolloutConfig(), 0, 2, unanswered()
)


async def answer(value):
    if isinstance(value, Exception):
        raise value
    return value


class Dying(RolloutFleet):
    """One worker whose calls die `deaths` times; rebuilding it takes no process."""

    def __init__(self, deaths):
        super().__init__(SETTINGS, [], None, None, {"d/refund/0": None}, lambda index: {})
        self.left = deaths
        call = SimpleNamespace(remote=self.attempt, options=lambda **_: group)
        group = SimpleNamespace(remote=self.group)
        self._workers = [_Worker(0, SimpleNamespace(run_attempt=call, run_group=call))]

    async def _rebuild(self, worker, dead):
        self.left -= 1

    def attempt(self, *arguments):
        return answer(RayActorError() if self.left else EPISODE)

    def group(self, *arguments):
        group = EpisodeGroup(0, 0, 0, "d/refund/0", (EPISODE, EPISODE))
        return answer(RayActorError() if self.left else summarise(group, (), 0, 0.0)), group


def test_an_attempt_that_died_with_its_worker_used_an_unknown_number_of_tokens():
    run = Dying(2).run_attempt("d/refund/0", "evaluate", 0, 0, 1, Sampling())
    assert asyncio.run(run).usage.agent == AGENT_USED + unknown(2)


def test_a_group_that_died_with_its_worker_is_booked_as_repeated():
    run = Dying(1).run_group(Assignment(0, 0, 0, 0, "d/refund/0"), 0)
    summary, _ = asyncio.run(run)
    assert summary.usage.agent == AGENT_USED + AGENT_USED
    assert summary.wasted_usage.agent == unknown(2)
