"""stage=verify: every recorded output of a run through the loop's interpreter and through the
serving stack's own parsers, and every recorded turn against its own token ids. A difference in a
well-formed output, or between a record and its ids, fails."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import orjson
from rich.console import Console

from tbrl.config import Config
from tbrl.domains.registry import all_domains
from tbrl.engine.environment import apply, engine_environment
from tbrl.episode.interpretation import Interpreter
from tbrl.episode.parity import Difference
from tbrl.episode.rendering import Renderer
from tbrl.episode.verification import Output, VerifyReport, verify_episode, verify_outputs
from tbrl.errors import ConfigError, TbrlError
from tbrl.policy.builtin import policy_folder
from tbrl.records.episodes import read_groups
from tbrl.records.run_dir import RunDir
from tbrl.serving.server import readers
from tbrl.tasks.schema import read_tasks
from tbrl.types import ToolSpec


class ParityDiffers(TbrlError):
    """The loop and the serving stack read a well-formed output differently."""


def main(config: Config) -> None:
    """Reads the episodes of `run`, or with `compare=[file.jsonl]` raw outputs
    ({"text": ..., "scenario_id": ..., "finish_reason": "stop"} a line)."""
    apply(engine_environment("cpu", 1))
    from transformers import AutoTokenizer

    folder = policy_folder(config.model.path)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    renderer, interpreter = readers(config, folder)
    differences: list[Difference] = []
    outputs: Iterator[Output]
    if config.compare:
        outputs = (o for name in config.compare for o in raw_outputs(Path(name)))
    else:
        run = RunDir.existing(config.runs_dir, config.run)
        outputs = recorded_outputs(run, interpreter, renderer, differences)
    report = verify_outputs(outputs, tokenizer, interpreter)
    differences += report.differences
    print_report(report, differences, Console(highlight=False))
    if differences:
        raise ParityDiffers(f"{len(differences)} differences; first: {differences[0]}")


def print_report(report: VerifyReport, differences: list[Difference], console: Console) -> None:
    console.print(
        f"{report.total} outputs, {report.compared} well-formed and compared, "
        f"{len(differences)} differences"
    )
    for kind, count in report.irregular.items():
        console.print(f"  irregular: {kind}: {count}")


def recorded_outputs(
    run: RunDir, interpreter: Interpreter, renderer: Renderer, differences: list[Difference]
) -> Iterator[Output]:
    """Every sampled turn of every recorded episode; records that do not follow from their ids go
    into `differences`. Raises ConfigError when the run recorded no steps, InvariantError for an
    episode file that was changed."""
    steps = run.recorded_steps()
    if not steps:
        raise ConfigError(f"run={run.name} recorded no steps; train first, or give compare=[file]")
    tools = tools_of_tasks(run)
    for step in steps:
        for stored in read_groups(run.episodes(step)):
            for episode in stored.group.episodes:
                own = tools[episode.task_ref]
                differences += verify_episode(episode, own, interpreter, renderer)
                ids = [*episode.prompt_ids.tolist(), *episode.response_ids.tolist()]
                for turn in episode.turns:
                    if turn.role == "assistant":
                        where = f"step {step} {episode.key} ids {turn.start}:{turn.end}"
                        sampled = ids[turn.start : turn.end]
                        yield Output.of_ids(where, sampled, own, interpreter)


def tools_of_tasks(run: RunDir) -> dict[str, tuple[ToolSpec, ...]]:
    """{task_ref: tools of its scenario} of the run's candidates."""
    scenarios = scenario_tools()
    tasks = read_tasks(run.curation / "candidates.jsonl")
    return {task.task_ref: scenarios[task.public.scenario_id] for task in tasks}


def scenario_tools() -> dict[str, tuple[ToolSpec, ...]]:
    return {
        f"{domain.name}/{name}": tuple(tool.spec for tool in size.tools)
        for domain in all_domains()
        for name, size in domain.sizes.items()
    }


def raw_outputs(path: Path) -> Iterator[Output]:
    """Lines of a JSONL file of raw outputs. Raises ConfigError naming file and line."""
    if not path.is_file():
        raise ConfigError(f"compare: {path} does not exist")
    scenarios = scenario_tools()
    for number, line in enumerate(path.read_bytes().splitlines(), start=1):
        where = f"{path}:{number}"
        try:
            row = orjson.loads(line)
            tools = scenarios[row["scenario_id"]]
            yield Output(where, row["text"], row.get("finish_reason", "stop"), tools)
        except (orjson.JSONDecodeError, KeyError, TypeError) as error:
            raise ConfigError(
                f"{where}: needs `text` and a known `scenario_id` ({type(error).__name__}: {error})"
            ) from None
