"""Writes what each training step leaves behind: episodes, receipt, ledger row, metrics."""

from __future__ import annotations

from typing import Any

from tbrl.actors.actor import spawn
from tbrl.actors.recorder import Recorder, write_step
from tbrl.config import Config
from tbrl.controller import StepRecord
from tbrl.ledger import ACCOUNTS
from tbrl.observability.trackers import build_trackers, scalars_of
from tbrl.observability.view import RunView
from tbrl.records.jsonl import JsonlWriter
from tbrl.records.receipts import SlotReceipt, StepReceipt
from tbrl.records.run_dir import RunDir
from tbrl.types import GroupSummary, JsonObject
from tbrl.usage import NO_TOKENS


class StepRecorder:
    """Hears of each step through `on_step`."""

    def __init__(self, run: RunDir, config: Config, view: RunView, digest: str) -> None:
        """`digest` is that of the weights that the engines hold before the first step."""
        self._run = run
        self._config = config
        self._view = view
        self._digest = digest
        self._recorder = spawn(Recorder)
        self._metrics = JsonlWriter(run.metrics)
        self._ledger = JsonlWriter(run.ledger)
        self._receipts = JsonlWriter(run.receipts)
        self._trackers = build_trackers(config.logger, run.root, run.name)

    async def on_step(self, record: StepRecord) -> None:
        groups = self._answered(record)
        fates = [(ACCOUNTS[record.fates[a]], g) for a, _, g in groups]
        digests, sha256 = await write_step(self._recorder, self._run.episodes(record.step), fates)
        by_assignment = {a: d for (a, _, _), d in zip(groups, digests, strict=True)}
        receipt = self._receipt(record, by_assignment, sha256)
        receipt.verify()
        self._digest = receipt.parameter_digest_after
        self._receipts.write(receipt.to_json())
        self._ledger.write(record.ledger.to_json())
        row = metrics_row(record, self._config)
        self._metrics.write(row)
        for tracker in self._trackers:
            tracker.log(record.step, scalars_of(row))
        self._view.step(row)

    def _answered(self, record: StepRecord) -> list[tuple[Any, GroupSummary, Any]]:
        order = sorted(record.arrived, key=lambda a: (a.slot, a.attempt))
        return [(a, *record.arrived[a]) for a in order]

    def _receipt(self, record: StepRecord, digests: dict[Any, str], sha256: str) -> StepReceipt:
        sync = record.sync
        echoes = sync.get("echoes", [])
        return StepReceipt(
            step=record.step,
            seed_root=self._config.algorithm.seed,
            policy_version_before=record.policy_version,
            policy_version_after=record.next_version,
            parameter_digest_before=self._digest,
            parameter_digest_after=sync.get("digest", self._digest),
            engine_versions={str(i): e["policy_version"] for i, e in enumerate(echoes)},
            engine_digests={str(i): e["digest"] for i, e in enumerate(echoes)},
            cache_reset=all(e["cache_reset"] for e in echoes) and bool(echoes),
            action_tokens=sum(record.arrived[a][0].action_tokens for a in record.committed),
            episodes=len(record.committed) * self._config.algorithm.group_size,
            groups=len(record.committed),
            slots=tuple(
                SlotReceipt(
                    a.slot,
                    a.attempt,
                    a.position,
                    a.task_ref,
                    digests[a],
                    record.arrived[a][0].rewards,
                )
                for a in record.committed
            ),
            no_op=record.learner.no_op,
            probe_logprob_gap=None,
            episodes_sha256=sha256,
        )

    def close(self) -> None:
        for writer in (self._metrics, self._ledger, self._receipts):
            writer.close()
        for tracker in self._trackers:
            tracker.close()


def metrics_row(record: StepRecord, config: Config) -> JsonObject:
    """One line of metrics.jsonl."""
    summaries = [summary for summary, _ in record.arrived.values()]
    committed = [record.arrived[a][0] for a in record.committed]
    rewards = [r for s in summaries for r in s.rewards]
    trained = [r for s in committed for r in s.rewards]
    tokens = sum(s.total_tokens + s.wasted_tokens for s in summaries)
    episodes = max(1, len(rewards))
    finished = sum(r in ("done", "end_turn_tool") for s in summaries for r in s.finish_reasons)
    accounts = record.ledger.accounts
    seconds = phase_seconds(record, summaries)
    return {
        "step": record.step,
        "policy_version": record.policy_version,
        "reward_mean": sum(rewards) / episodes,
        "reward_trained": sum(trained) / max(1, len(trained)),
        "groups": {name: account.groups for name, account in accounts.items()},
        "episodes": len(rewards),
        "attempts": len(summaries),
        "accepted": accounts["trained"].groups,
        "zero_variance": accounts["zero_variance"].groups,
        "failed": accounts["failed"].groups,
        "retried_episodes": record.ledger.retries,
        "finished": finished / max(1, sum(len(s.finish_reasons) for s in summaries)),
        "malformed_turns": sum(s.malformed_turns for s in summaries),
        "tokens": tokens,
        "action_tokens": sum(s.action_tokens for s in summaries),
        **usage_metrics(summaries),
        "tokens_per_s": tokens / max(1e-9, record.seconds["rollout"]),
        "learning_rate": config.algorithm.learning_rate,
        "no_op": record.learner.no_op,
        **record.learner.metrics,
        "seconds": seconds,
    }


def usage_metrics(summaries: list[GroupSummary]) -> JsonObject:
    """What the models of a step used, repeated runs included. The policy's share of prompt tokens
    that came from the prefix cache is null where the engine did not say."""
    used = sum((s.usage + s.wasted_usage for s in summaries), NO_TOKENS)
    return {
        "prompt_tokens": used.agent.input,
        "cached_tokens": used.agent.cached,
        "generated_tokens": used.agent.output,
        "cache_hit_share": used.agent.cache_hit_share,
        "usage": used.to_json(),
    }


def phase_seconds(record: StepRecord, summaries: list[GroupSummary]) -> dict[str, float]:
    """Wall seconds of a step by phase. Within the rollout phase episodes overlap, so its wall time
    is split by their summed seconds: grading is `reward`, the rest is `rollout`. `overlap` is
    learner time inside the rollout phase, not added to the total."""
    summed = {
        phase: sum(s.seconds.get(phase, 0.0) for s in summaries)
        for phase in ("engine", "tools", "user", "grade", "total")
    }
    share = summed["grade"] / summed["total"] if summed["total"] else 0.0
    idle = max(0.0, summed["total"] - sum(summed[p] for p in ("engine", "tools", "user", "grade")))
    idle_share = idle / summed["total"] if summed["total"] else 0.0
    wall = record.seconds
    return {
        "rollout": wall["rollout"] * (1 - share - idle_share),
        "reward": wall["rollout"] * share,
        "idle": wall["rollout"] * idle_share,
        "learner": wall["learner"],
        "weight_sync": wall["weight_sync"],
        "overlap": record.learner.overlap_s,
        "total": sum(wall.values()),
    }
