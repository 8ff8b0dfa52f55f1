"""Seeds depend on what an episode is, and on nothing else."""

import itertools
import random
import subprocess
import sys

import torch
from hypothesis import given
from hypothesis import strategies as st

from tbrl.seeds import (
    episode_seed,
    evaluation_seed,
    evaluation_user_seed,
    probe_seed,
    task_rank,
    user_seed,
)

small = st.integers(0, 1 << 40)
counters = st.tuples(small, small, small, small, small, small, st.integers(0, 9))


def test_no_two_turns_of_a_run_share_a_seed():
    grid = itertools.product((0, 1), range(6), range(18), range(3), range(8), range(6), (0, 1))
    seeds = [make(*key) for key in grid for make in (episode_seed, user_seed)]
    assert len(set(seeds)) == len(seeds)


@given(st.lists(counters, min_size=2, max_size=50, unique=True))
def test_different_counters_give_different_seeds(keys):
    assert len({episode_seed(*key) for key in keys}) == len(keys)


@given(counters)
def test_seeds_fit_the_generators_that_take_them(key):
    seed = episode_seed(*key)
    assert 0 <= seed < 2**63
    assert torch.Generator().manual_seed(seed).initial_seed() == seed


def test_purposes_never_share_a_seed():
    same = [
        episode_seed(3, 1, 2, 0, 0, 0),
        user_seed(3, 1, 2, 0, 0, 0),
        probe_seed(3, "rental/return/1", 1, 2),
        evaluation_seed(3, "rental/return/1", 1, 2),
        evaluation_user_seed(3, "rental/return/1", 1, 2),
        task_rank(3, 1, "rental/return/1"),
    ]
    assert len(set(same)) == len(same)


@given(st.lists(st.text(max_size=12), min_size=2, max_size=30, unique=True), st.integers(0, 99))
def test_probe_and_evaluation_seeds_differ_by_task(task_refs, attempt):
    for make in (probe_seed, evaluation_seed):
        assert len({make(0, ref, attempt, 0) for ref in task_refs}) == len(task_refs)


def test_seeds_do_not_depend_on_topology_order_or_process():
    """Whoever asks, in whatever order and process, gets the same number."""
    keys = [(7, 2, slot, 0, rollout, 1) for slot in range(18) for rollout in range(8)]
    one_worker = {key: episode_seed(*key) for key in keys}
    shuffled = keys[:]
    random.Random(1).shuffle(shuffled)
    three_workers = {key: episode_seed(*key) for w in range(3) for key in shuffled[w::3]}
    assert three_workers == one_worker
    code = "from tbrl.seeds import episode_seed; print(episode_seed(7, 2, 17, 0, 7, 1))"
    other = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert int(other.stdout) == one_worker[(7, 2, 17, 0, 7, 1)]


def test_the_salt_changes_a_seed_only_when_it_is_set():
    assert episode_seed(0, 1, 2, 3, 4, 5) == episode_seed(0, 1, 2, 3, 4, 5, salt=0)
    assert episode_seed(0, 1, 2, 3, 4, 5) != episode_seed(0, 1, 2, 3, 4, 5, salt=1)


def test_recorded_seeds_stay_valid():
    """Runs on disk are replayed from their seeds: the hash must never change."""
    assert episode_seed(0, 0, 0, 0, 0, 0) == 2795352265644699299
