"""Replay: recompute a recorded step from its files and prove equality. No Ray.

    check          what is recomputed, against what
    file           hash of the episode file, against the receipt
    content        every episode's content digest, against the digest stored with it
    groups         committed groups (slot, attempt, task, digest), against the receipt
    ledger         groups and episodes by fate, tokens trained, against the ledger row and receipt
    tokens         ids, mask, logprobs and turns of each episode, against each other
    seeds          sampling seed of every assistant turn, against its identity
    rewards        outcomes graded anew (`regrade`), against the recorded outcomes
    advantages     from the recorded rewards, against those from the graded outcomes and receipt
    update         loss, gradient and parameters of the step taken again (`update`), against metrics
                   and receipt
    sampling       episodes sampled anew (`resample`): ids, mask, logprobs, outcome

The last two need a policy, which the caller plugs in; without it they are left out of the report
rather than counted as equal. A difference is one line that names step, slot, attempt and rollout.
"""
