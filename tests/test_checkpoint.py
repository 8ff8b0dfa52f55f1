"""Checkpoints: resume is the uninterrupted run, a killed writer leaves nothing that is read."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from learner_toys import ToyPolicy, groups, on_ranks, tiny_policy

from tbrl.config import AlgorithmConfig, ModelConfig
from tbrl.errors import ConfigError, InvariantError
from tbrl.learner.checkpoint import (
    MANIFEST,
    Checkpointer,
    broken_file,
    consolidate,
    latest_complete,
    list_checkpoints,
)
from tbrl.learner.distributed import Ranks
from tbrl.learner.learner import GrpoLearner
from tbrl.types import Sampling


def learner(ranks=None, policy=None):
    return GrpoLearner(
        AlgorithmConfig(learning_rate=1e-3), ModelConfig(), Sampling(), ranks or Ranks(),
        policy or ToyPolicy(),
    )  # fmt: skip


def step(subject, index):
    subject.begin_step()
    for slot, group in enumerate(groups(3, seed=index)):
        if slot % subject.ranks.world == subject.ranks.rank:
            subject.add_group(group, slot)
    return subject.finish()


def snapshot(subject):
    return {k: {n: t.clone() for n, t in v.items()} for k, v in subject.engine.state().items()}


def assert_same_state(left, right):
    for kind in right:
        assert left[kind].keys() == right[kind].keys()
        assert all(torch.equal(left[kind][n], t) for n, t in right[kind].items()), kind


@pytest.mark.parametrize("first", [0, 3])
def test_resumed_run_is_the_uninterrupted_run_bitwise(tmp_path, first):
    """Also from before the first step, when the optimizer has not run yet."""
    straight = learner(policy=tiny_policy())
    for index in range(6):
        step(straight, index)
    begun = learner(policy=tiny_policy())
    for index in range(first):
        step(begun, index)
    path = begun.save(tmp_path, first, {"cursor": [1, 2]}).result()
    resumed = learner(policy=tiny_policy(seed=9))
    assert resumed.load(path) == {"cursor": [1, 2]}
    for index in range(first, 6):
        stats = step(resumed, index)
    assert_same_state(snapshot(resumed), snapshot(straight))
    assert stats.updates == 6 and stats.digest_after == straight.digest()


def test_saving_does_not_change_the_run(tmp_path):
    saved, plain = learner(), learner()
    for index in range(3):
        saved.save(tmp_path, index)
        step(saved, index), step(plain, index)
    assert_same_state(snapshot(saved), snapshot(plain))


def test_asynchronous_save_holds_the_state_of_its_call(tmp_path):
    subject = learner()
    step(subject, 0)
    wanted = snapshot(subject)
    subject.save(tmp_path, 1, asynchronous=True)
    for index in range(1, 5):
        step(subject, index)
    subject.wait_saved()
    restored = learner(policy=ToyPolicy(seed=4))
    restored.load(latest_complete(tmp_path))
    assert_same_state(snapshot(restored), wanted)


def test_an_error_of_an_asynchronous_save_is_raised(tmp_path):
    (tmp_path / "file").write_text("not a folder")
    subject = learner()
    subject.save(tmp_path / "file", 1, asynchronous=True)
    with pytest.raises(OSError):
        subject.wait_saved()


def test_the_newest_complete_checkpoint_is_found_and_damaged_ones_are_skipped(tmp_path):
    subject = learner()
    for index in range(4):
        subject.save(tmp_path, index, keep=10)
        step(subject, index)
    assert latest_complete(tmp_path).name == "step-3"
    newest = next((tmp_path / "step-3").glob("*.distcp"))
    body = bytearray(newest.read_bytes())
    body[len(body) // 2] ^= 1
    newest.write_bytes(body)
    assert broken_file(tmp_path / "step-3") == newest.name
    (tmp_path / "step-2" / MANIFEST).unlink()
    shutil.copytree(tmp_path / "step-0", tmp_path / "step-9.tmp")  # not renamed: not there
    assert latest_complete(tmp_path).name == "step-1"
    (tmp_path / "step-1" / ".metadata").unlink()
    assert latest_complete(tmp_path).name == "step-0"


def test_only_the_newest_are_kept(tmp_path):
    subject = learner()
    for index in (2, 9, 10, 11):
        subject.save(tmp_path, index, keep=2)
    assert [p.name for p in list_checkpoints(tmp_path)] == ["step-11", "step-10"]
    subject.save(tmp_path, 11, {"again": True})
    assert json.loads((tmp_path / "step-11" / MANIFEST).read_text())["extra"]["caller"]["again"]


def test_unfit_folders_are_refused_with_one_line(tmp_path):
    subject = learner()
    with pytest.raises(ConfigError, match=MANIFEST):
        subject.load(tmp_path)
    path = subject.save(tmp_path, 1).result()
    with pytest.raises(ConfigError, match="does not fit"):
        learner(policy=tiny_policy()).load(path)
    with pytest.raises(ConfigError, match="does not fit"):
        learner(policy=ToyPolicy(width=4)).load(path)
    shard = next(path.glob("*.distcp"))
    shard.write_bytes(shard.read_bytes()[:100])
    with pytest.raises(ConfigError, match="damaged"):
        learner().load(path)


def test_saving_inside_a_step_is_refused(tmp_path):
    subject = learner()
    subject.begin_step()
    with pytest.raises(InvariantError):
        subject.save(tmp_path, 1)


@pytest.mark.parametrize("tied", [True, False])
def test_consolidated_weights_are_the_hugging_face_parameters(tmp_path, tied):
    policy = tiny_policy(tied=tied)
    path = learner(policy=policy).save(tmp_path, 1).result()
    found = consolidate(path)
    wanted = dict(policy.causal_lm.named_parameters())
    assert found.keys() == wanted.keys() and ("lm_head.weight" in found) == (not tied)
    assert all(torch.equal(found[n], t) for n, t in wanted.items())


WRITER = """
import sys
from pathlib import Path
import torch
from tbrl.learner.checkpoint import Checkpointer
from tbrl.learner.distributed import Ranks
body = {"model": {f"w{i}": torch.full((200_000,), float(i)) for i in range(8)}}
saver = Checkpointer(sys.argv[1], Ranks(), keep=3)
for step in range(10_000):
    saver.save(step, body, {"step": step})
    print(step, flush=True)
"""


@pytest.mark.parametrize("finished", [1, 4])
def test_a_writer_killed_at_any_moment_leaves_a_complete_newest_checkpoint(tmp_path, finished):
    writer = subprocess.Popen(
        [sys.executable, "-c", WRITER, str(tmp_path)], stdout=subprocess.PIPE, text=True
    )
    for _ in range(finished):
        last = int(writer.stdout.readline())
    while not list(tmp_path.glob("*.tmp")):  # kill while the next one is being written
        assert writer.poll() is None
    os.kill(writer.pid, signal.SIGKILL)
    writer.wait()
    last = max([last, *(int(line) for line in writer.stdout)])
    found = latest_complete(tmp_path)
    # The rename may have happened just before the kill, its print not.
    assert found.name in (f"step-{last}", f"step-{last + 1}")
    assert broken_file(found) == ""
    assert set(consolidate(found)) == {f"w{i}" for i in range(8)}
    Checkpointer(tmp_path, Ranks()).save(99, {"model": {"w": torch.zeros(2)}}, {})
    assert not list(tmp_path.glob("*.tmp")), "what the killed writer left is removed"


def save_on_ranks(ranks: Ranks, root: str):
    """Two steps, a save (asynchronous, with steps running on), then load what one rank wrote."""
    subject = learner(ranks, tiny_policy())
    for index in range(2):
        step(subject, index)
    subject.save(Path(root) / "many", 2, {"from": ranks.world}, asynchronous=True)
    after = step(subject, 2).digest_after
    subject.wait_saved()
    resumed = learner(ranks, tiny_policy(seed=8))
    resumed.load(Path(root) / "many" / "step-2")
    assert step(resumed, 2).digest_after == after, "resume on the same ranks is bitwise"
    other = learner(ranks, tiny_policy(seed=7))
    other.load(Path(root) / "one" / "step-2")
    return step(other, 2).digest_after, other.digest(), other.updates


def test_checkpoints_load_onto_another_number_of_ranks(tmp_path):
    alone = learner(policy=tiny_policy())
    for index in range(2):
        step(alone, index)
    alone.save(tmp_path / "one", 2)
    results = on_ranks(2, save_on_ranks, str(tmp_path))
    path = latest_complete(tmp_path / "many")
    assert len(list(path.glob("*.distcp"))) == 2
    resumed = learner(policy=tiny_policy(seed=7))
    assert resumed.load(path) == {"from": 2}
    state, wanted = snapshot(resumed), snapshot(alone)
    for kind in wanted:
        for name, tensor in wanted[kind].items():
            torch.testing.assert_close(state[kind][name], tensor, rtol=1e-4, atol=1e-5)
    assert all(r == (results[0][0], results[0][0], 3) for r in results)
