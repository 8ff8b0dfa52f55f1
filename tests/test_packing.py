import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from learner_toys import VOCABULARY, episode, groups, tiny_causal_lm, tiny_policy

from tbrl.errors import ConfigError, InvariantError
from tbrl.learner.model import Policy, check_packing
from tbrl.learner.packing import Sequence1D, dummy_batch, pack_sequences, sequences_of
from tbrl.types import EpisodeKey, Sampling

CPU = torch.device("cpu")


def sequence(rng, prompt, length):
    mask = rng.random(length) < 0.6
    mask[-1] = True
    ids = rng.integers(0, VOCABULARY, length)
    return Sequence1D(prompt, ids, mask, rng.normal(-1, 1, length), float(rng.normal()), 1.0)


def sequences(seed, lengths, shared=True):
    rng = np.random.default_rng(seed)
    prompts = [rng.integers(0, VOCABULARY, 6) for _ in range(2)]
    return [sequence(rng, prompts[0 if shared else i % 2], n) for i, n in enumerate(lengths)]


def scored_gradients(policy, batches):
    policy.zero_grad()
    logprobs = []
    for batch in batches:
        scores = policy(batch, (Sampling(),))[0]
        (scores.logprobs * batch.advantages.float()).sum().backward()
        logprobs.append(scores.logprobs.detach())
    return torch.cat(logprobs), [p.grad.clone() for p in policy.parameters()]


def padded_gradients(causal_lm, items):
    """Right-padded rows through the stock eager attention of transformers."""
    causal_lm.zero_grad()
    width = max(len(s.prompt) + len(s.response) for s in items)
    ids = torch.zeros(len(items), width, dtype=torch.int64)
    for row, s in enumerate(items):
        ids[row, : len(s.prompt) + len(s.response)] = torch.from_numpy(
            np.concatenate([s.prompt, s.response])
        )
    logprobs = causal_lm(input_ids=ids, use_cache=False).logits[:, :-1].log_softmax(-1)
    picked = logprobs.gather(2, ids[:, 1:, None])[:, :, 0]
    result, total = [], 0.0
    for row, s in enumerate(items):
        own = picked[row, len(s.prompt) - 1 : len(s.prompt) - 1 + len(s.response)]
        own = own[torch.from_numpy(s.mask)]
        total = total + (own * s.advantage).sum()
        result.append(own.detach())
    total.backward()
    return torch.cat(result), [p.grad.clone() for p in causal_lm.parameters()]


@pytest.mark.parametrize("share_prompt", [True, False])
@pytest.mark.parametrize("budget", [25, 4096])
@pytest.mark.parametrize("shared", [True, False])
def test_packed_equals_padded_rows_in_logprobs_and_gradients(share_prompt, budget, shared):
    policy, plain = tiny_policy(), tiny_causal_lm()
    plain.set_attn_implementation("eager")
    items = sequences(0, [9, 1, 12, 5, 7], shared)
    batches = pack_sequences(items, budget, share_prompt)
    assert (len(batches) > 1) == (budget == 25)
    logprobs, grads = scored_gradients(policy, batches)
    expected, expected_grads = padded_gradients(plain, items)
    torch.testing.assert_close(logprobs, expected, rtol=0, atol=5e-6)
    scale = max(float(g.abs().max()) for g in expected_grads)
    for ours, theirs in zip(grads, expected_grads, strict=True):
        torch.testing.assert_close(ours / scale, theirs / scale, rtol=0, atol=1e-6)


def test_shared_prompt_equals_repeated_prompts_and_is_computed_once():
    policy = tiny_policy()
    items = sequences(1, [9, 14, 4, 11])
    once, repeated = (pack_sequences(items, 4096, share) for share in (True, False))
    assert sum(b.tokens for b in repeated) - sum(b.tokens for b in once) == 3 * 6
    left, left_grads = scored_gradients(policy, once)
    right, right_grads = scored_gradients(policy, repeated)
    torch.testing.assert_close(left, right, rtol=0, atol=5e-6)
    scale = max(float(g.abs().max()) for g in right_grads)
    for ours, theirs in zip(left_grads, right_grads, strict=True):
        torch.testing.assert_close(ours / scale, theirs / scale, rtol=0, atol=1e-6)


def test_sequences_do_not_see_each_other():
    policy = tiny_policy()
    items = sequences(2, [9, 14, 4])
    before = policy(pack_sequences(items, 4096)[0], (Sampling(),))[0].logprobs.detach()
    other = (items[0].response + 1) % VOCABULARY
    changed = [Sequence1D(items[0].prompt, other, items[0].mask, other * 0.0, 1.0, 1.0), *items[1:]]
    after = policy(pack_sequences(changed, 4096)[0], (Sampling(),))[0].logprobs.detach()
    own = int(items[0].mask.sum())
    assert not torch.equal(before[:own], after[:own])
    assert torch.equal(before[own:], after[own:])


@given(
    st.lists(st.integers(1, 12), min_size=1, max_size=8), st.integers(1, 60), st.booleans(),
    st.booleans(), st.integers(0, 99),
)  # fmt: skip
@settings(max_examples=80, deadline=None)
def test_every_action_token_is_predicted_by_its_own_predecessor_once(
    lengths, budget, share_prompt, shared, seed
):
    items = sequences(seed, lengths, shared)
    batches = pack_sequences(items, budget, share_prompt)
    wanted, found = [], []
    for s in items:
        whole = np.concatenate([s.prompt, s.response])
        for i in np.flatnonzero(s.mask):
            at = len(s.prompt) + int(i)
            wanted.append((at - 1, int(whole[at - 1]), int(whole[at]), s.advantage))
    for batch in batches:
        assert sum(span.length for span in batch.spans) == batch.tokens
        assert all(b.start == a.start + a.length for a, b in zip(batch.spans, batch.spans[1:]))  # noqa: B905
        many = len(batch.spans) > (2 if batch.spans[-1].prefix_length else 1)
        assert batch.tokens <= budget or not many
        found += list(
            zip(
                batch.position_ids[batch.rows].tolist(), batch.input_ids[batch.rows].tolist(),
                batch.targets.tolist(), batch.advantages.tolist(), strict=True,
            )
        )  # fmt: skip
    assert found == wanted


def test_segments_become_sequences_of_their_own_and_tails_are_dropped():
    rng = np.random.default_rng(0)
    base = episode(rng, EpisodeKey(0, 0, 0, 0), np.arange(3), 12, 1.0, Sampling())
    mask = np.array([1, 1, 0, 0, 0, 0, 1, 1, 0, 1, 0, 0], bool)
    from dataclasses import replace

    parts = sequences_of(replace(base, action_mask=mask, segments=(3,)), 0.5, 1.0)
    ids = base.response_ids
    assert [p.prompt.tolist() for p in parts] == [[0, 1, 2], ids[3:6].tolist()]
    assert [p.response.tolist() for p in parts] == [ids[0:2].tolist(), ids[6:10].tolist()]
    assert [p.mask.tolist() for p in parts] == [[True, True], [True, True, False, True]]
    with pytest.raises(InvariantError):
        sequences_of(replace(base, action_mask=mask, segments=(6,)), 0.5, 1.0)


def test_sampled_token_without_a_behaviour_logprob_is_refused():
    item = sequences(0, [4])[0]
    item.behaviour_logprobs[-1] = np.nan
    with pytest.raises(InvariantError):
        pack_sequences([item], 100)


def test_self_test_passes_a_causal_model_and_refuses_one_that_mixes_sequences():
    assert check_packing(tiny_policy(), VOCABULARY, CPU, 1e-4) < 1e-4

    class Leaky(Policy):
        def __init__(self):
            super().__init__()
            self.inner = tiny_policy()

        def forward(self, batch, samplings):
            from dataclasses import replace

            from tbrl.learner.packing import Span

            return self.inner(replace(batch, spans=(Span(0, batch.tokens),)), samplings)

    with pytest.raises(ConfigError):
        check_packing(Leaky(), VOCABULARY, CPU, 1e-4)


def test_dummy_weighs_zero():
    batch = dummy_batch()
    assert batch.weights.tolist() == [0.0] and batch.tokens == 2


def test_group_members_with_failures_are_left_out_of_packing():
    from tbrl.learner.accumulate import PackingSettings, prepare_group

    group = groups(1, rewards=(1, None, 0))[0]
    prepared = prepare_group(group, PackingSettings())
    scored = [e for e in group.episodes if e.key.rollout != 1]
    assert prepared.action_tokens == sum(e.action_tokens for e in scored)
    assert prepared.divisor == prepared.action_tokens
    assert sorted(set(prepared.batches[0].advantages.tolist())) == [-0.5, 0.5]


class Rounding(Policy):
    """Exact but for what depends on the length of a batch alone, as kernels' rounding does."""

    def __init__(self, size: float) -> None:
        super().__init__()
        self.inner, self.size = tiny_policy(), size

    def forward(self, batch, samplings):
        noise = torch.Generator().manual_seed(batch.tokens)
        shift = self.size * torch.rand((), generator=noise)
        return tuple(
            scores._replace(logprobs=scores.logprobs + shift)
            for scores in self.inner(batch, samplings)
        )


def test_the_check_allows_rounding_that_length_alone_causes_but_not_any():
    assert check_packing(Rounding(0.2), VOCABULARY, CPU, 5e-2) > 0.05
    with pytest.raises(ConfigError, match="limit 1"):
        check_packing(Rounding(20.0), VOCABULARY, CPU, 5e-2)
