"""A recorded step can be recomputed, and anything that was changed since is found."""

from dataclasses import replace

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from learner_toys import VOCABULARY, ToyPolicy

from tbrl.config import AlgorithmConfig, ModelConfig
from tbrl.episode.group import summarise
from tbrl.errors import ConfigError
from tbrl.learner.learner import GrpoLearner
from tbrl.ledger import StepLedger
from tbrl.records.episodes import EpisodeWriter
from tbrl.records.jsonl import JsonlWriter, read_jsonl, rewrite_jsonl
from tbrl.records.receipts import SlotReceipt, StepReceipt
from tbrl.records.run_dir import RunDir
from tbrl.replay.plugs import regrade_with, update_with
from tbrl.replay.step import replay_step
from tbrl.schedule import SlotSchedule, TaskStream
from tbrl.seeds import episode_seed
from tbrl.types import (
    Episode,
    EpisodeGroup,
    EpisodeKey,
    Failed,
    Grade,
    Sampling,
    Scored,
    Turn,
)

SLOTS, SIZE, ROOT = 3, 4, 11
ALGORITHM = AlgorithmConfig(groups_per_step=SLOTS, group_size=SIZE, learning_rate=0.01, seed=ROOT)


def learner() -> GrpoLearner:
    return GrpoLearner(ALGORITHM, ModelConfig(), Sampling(), policy=ToyPolicy())


def reward_of(state_hash: str) -> float:
    return float(int(state_hash, 16) % 2)


class HashGrader:
    """Golden rule of the toy world: odd hashes are right."""

    async def grade(self, task_ref, terminal, final_text):
        reward = reward_of(terminal.state_hash)
        return Grade(Scored(reward, bool(reward), attribution="" if reward else final_text))


def play(key: EpisodeKey, task_ref: str, version: int, rewards: str) -> Episode:
    """Deterministic in its key; `rewards` says how each member of the group ends: 1, 0 or f."""
    rng = np.random.default_rng([key.step, key.slot, key.attempt, key.rollout])
    ends = rewards[key.rollout]
    mask = np.array([True] * 4 + [False] * 3 + [True] * 5)
    logprobs = np.where(mask, rng.normal(-3, 0.1, 12), 0).astype(np.float32)
    prompt = np.arange(5, dtype=np.int32)
    turns = [Turn("user", "hi", end=5)]
    for number, (start, end) in enumerate([(5, 9), (12, 17)]):
        seed = episode_seed(ROOT, key.step, key.slot, key.attempt, key.rollout, number)
        turns.append(Turn("assistant", f"text {number}", start=start, end=end, seed=seed))
    state_hash = f"{2 * int(rng.integers(100)) + int(ends == '1'):x}"
    reward = reward_of(state_hash)
    scored = Scored(reward, bool(reward), attribution="" if reward else "text 1")
    return Episode(
        key=key,
        task_ref=task_ref,
        domain="toy",
        template="toy",
        policy_version=version,
        prompt_ids=prompt,
        response_ids=rng.integers(0, VOCABULARY, 12).astype(np.int32),
        action_mask=mask,
        behaviour_logprobs=logprobs,
        turns=tuple(turns),
        finish_reason="done",
        outcome=Failed("backend", "sandbox", "gone") if ends == "f" else scored,
        sampling=Sampling(),
        state_hash=state_hash,
    )


def record(run: RunDir, steps: int) -> None:
    """A run of the pure parts: schedule, ledger, learner, records."""
    pool = [f"toy/{i}" for i in range(9)]
    schedule = SlotSchedule(TaskStream(pool, ROOT), SLOTS, 9)
    policy = learner()
    take = update_with(policy, torch.float64)
    writers = [JsonlWriter(path) for path in (run.receipts, run.ledger, run.metrics)]
    for step in range(steps):
        schedule.begin_step(step)
        ledger, groups = StepLedger(step), []
        while not schedule.complete:
            for a in schedule.ready():
                ledger.dispatched(a, SIZE)
                rewards = ["0000", "1f10", "1001"][min(2, a.attempt + (a.slot + step) % 3)]
                members = tuple(
                    play(EpisodeKey(step, a.slot, a.attempt, i), a.task_ref, step, rewards)
                    for i in range(SIZE)
                )
                group = EpisodeGroup(step, a.slot, a.attempt, a.task_ref, members)
                summary = summarise(group, (), 0, 0.0)
                ledger.received(a, summary)
                ledger.settle(schedule.resolve(a, summary.verdict))
                groups.append((a, group, summary))
        fate = {"accepted": "trained"}
        digests = {}
        with EpisodeWriter(run.episodes(step)) as writer:
            for a, group, summary in groups:
                digests[a] = writer.append(group, fate.get(summary.verdict, summary.verdict))
        trained = sorted((x for x in groups if x[2].verdict == "accepted"), key=lambda x: x[0].slot)
        updated = take(step, [(a.slot, group) for a, group, _ in trained])
        receipt = StepReceipt(
            step=step,
            seed_root=ROOT,
            policy_version_before=step,
            policy_version_after=step + 1,
            parameter_digest_before=updated.parameter_digest_before,
            parameter_digest_after=updated.parameter_digest_after,
            engine_versions={},
            engine_digests={},
            cache_reset=True,
            action_tokens=sum(summary.action_tokens for _, _, summary in trained),
            episodes=SLOTS * SIZE,
            groups=SLOTS,
            slots=tuple(
                SlotReceipt(a.slot, a.attempt, a.position, a.task_ref, digests[a], s.rewards)
                for a, _, s in trained
            ),
            no_op=False,
            probe_logprob_gap=None,
            episodes_sha256=writer.sha256,
        )
        rows = (receipt.to_json(), ledger.close().to_json(), {"step": step, **updated.metrics})
        for target, row in zip(writers, rows, strict=True):
            target.write(row)
    for target in writers:
        target.close()


@pytest.fixture
def run(tmp_path):
    run = RunDir.create(tmp_path, "toy")
    record(run, 2)
    return run


def found(run: RunDir, step: int = 0, **plugs) -> dict[str, tuple[str, ...]]:
    """{check: differences} of the checks that found any."""
    report = replay_step(run, step, **plugs)
    assert report.equal == (not any(c.differences for c in report.checks))
    return {c.name: c.differences for c in report.checks if c.differences}


def rewrite_episodes(run: RunDir, change, step: int = 0, fate=lambda f: f) -> None:
    """Another consistent file: digests are made anew, as a forger would."""
    from tbrl.records.episodes import read_groups

    stored = list(read_groups(run.episodes(step)))
    with EpisodeWriter(run.episodes(step)) as writer:
        for s in stored:
            members = tuple(map(change, s.group.episodes))
            writer.append(replace(s.group, episodes=members), fate(s.fate))


def same(episodes):
    return [play(e.key, e.task_ref, e.policy_version, rewards_of(e, episodes)) for e in episodes]


def rewards_of(episode, episodes):
    group = [e for e in episodes if replace(e.key, rollout=0) == replace(episode.key, rollout=0)]
    ends = {True: "1", False: "0"}
    return "".join("f" if isinstance(e.outcome, Failed) else ends[e.reward > 0] for e in group)


# ------------------------------------------------------------ equality


def test_a_recorded_run_replays_equal_in_every_check(run):
    plugs = {
        "regrade": regrade_with(HashGrader()),
        "resample": same,
        "update": update_with(learner(), torch.float64),
    }
    for step in (0, 1):
        report = replay_step(run, step, **plugs)
        assert report.equal, report.lines()
        names = [check.name for check in report.checks]
        assert names == [
            "file",
            "content",
            "groups",
            "ledger",
            "tokens",
            "seeds",
            "rewards",
            "advantages",
            "update",
            "sampling",
        ]
        assert all(check.compared for check in report.checks)


def test_checks_that_need_a_policy_are_left_out_not_counted_as_equal(run):
    names = {check.name for check in replay_step(run, 0).checks}
    assert not names & {"rewards", "update", "sampling"}


def test_a_step_that_was_not_recorded_is_refused(run):
    with pytest.raises(ConfigError, match=r"step=7: .* 0 rows"):
        replay_step(run, 7)


# ------------------------------------------------------------ differences


@pytest.mark.parametrize("at", [0.1, 0.3, 0.5, 0.7, 0.9])
def test_one_changed_byte_of_the_file_is_found(run, at):
    path = run.episodes(0)
    content = bytearray(path.read_bytes())
    content[int(at * len(content))] ^= 1
    path.write_bytes(content)
    assert "file" in found(run)


def test_a_missing_file_is_found(run):
    run.episodes(0).unlink()
    assert "file" in found(run)


def test_a_forged_episode_is_found_by_the_receipt(run):
    def forge(e):
        if e.key.rollout or e.key.slot:
            return e
        return replace(e, behaviour_logprobs=e.behaviour_logprobs * np.float32(1.0001))

    rewrite_episodes(run, forge)
    assert {"file", "groups"} <= set(found(run))


def test_a_flipped_reward_is_found_by_grading_and_by_advantages(run):
    def flip(e):
        if e.key.slot or e.key.rollout or not isinstance(e.outcome, Scored):
            return e
        return replace(e, outcome=replace(e.outcome, reward=1 - e.outcome.reward))

    rewrite_episodes(run, flip)
    assert {"rewards", "advantages"} <= set(found(run, regrade=regrade_with(HashGrader())))


def test_a_group_dropped_from_the_file_is_found_by_the_ledger(run):
    path = run.episodes(0)
    table = pq.read_table(path)
    first = table["slot"].to_numpy() == 0
    pq.write_table(table.filter(~first), path)
    names = set(found(run))
    assert {"groups", "ledger"} <= names


def test_a_zero_variance_group_passed_off_as_trained_is_found(run):
    rewrite_episodes(run, lambda e: e, fate=lambda fate: "trained")
    assert any("outcomes say" in line for line in found(run)["ledger"])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda e: replace(e, action_mask=~e.action_mask), "exactly the assistant turns"),
        (lambda e: replace(e, behaviour_logprobs=e.behaviour_logprobs - 1), "observed token"),
        (lambda e: replace(e, response_ids=e.response_ids[:-1]), "lengths"),
        (
            lambda e: replace(e, behaviour_logprobs=e.behaviour_logprobs * np.float32("nan")),
            "not a number",
        ),
    ],
)
def test_tokens_that_do_not_fit_together_are_found(run, change, message):
    rewrite_episodes(run, change)
    assert any(message in line for line in found(run)["tokens"])


def test_a_seed_of_another_rollout_is_found(run):
    def clone(e):
        turns = tuple(
            replace(t, seed=episode_seed(ROOT, e.key.step, e.key.slot, e.key.attempt, 0, 0))
            if t.role == "assistant"
            else t
            for t in e.turns
        )
        return replace(e, turns=turns)

    rewrite_episodes(run, clone)
    assert found(run)["seeds"]


def test_an_update_on_other_weights_or_groups_is_found(run):
    behind = update_with(learner(), torch.float64)
    assert "update" in found(run, step=1, update=behind)  # holds the weights before step 0

    def dropped(step, groups):
        return update_with(learner(), torch.float64)(step, groups[1:])

    lines = found(run, update=dropped)["update"]
    assert any(line.startswith("digest after") for line in lines)
    assert any(line.startswith("action_tokens") for line in lines)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda e: replace(e, response_ids=np.append(e.response_ids[:-1], np.int32(0))), "11"),
        (lambda e: replace(e, behaviour_logprobs=e.behaviour_logprobs + np.float32(1e-4)), "up to"),
        (lambda e: replace(e, state_hash="0"), "now"),
    ],
)
def test_a_sampling_that_differs_is_found(run, change, message):
    def resample(episodes):
        return [change(e) if e.key.rollout == 1 else e for e in same(episodes)]

    lines = found(run, resample=resample)["sampling"]
    assert all(" rollout 1: " in line and message in line for line in lines)


def test_a_changed_ledger_row_is_found(run):
    rows = read_jsonl(run.ledger)
    rows[0]["accounts"]["zero_variance"]["groups"] += 1
    rewrite_jsonl(run.ledger, rows)
    assert any("zero_variance" in line for line in found(run)["ledger"])
