"""Reading outputs: tbrl's interpreter against vLLM's own parser, in one process.

    python benchmarks/interpretation.py [--seconds 1.0] [--turn-ms 8]

Single-threaded CPU time. Each workload is a list of outputs of one kind; both sides get the same
text and give reasoning, visible text and typed calls. Below: what one turn of a rollout costs in
words (reading the sampled ids, rendering the delta), as a share of `--turn-ms`, the CPU time of a
whole turn of the embedded default (engine, tools and user included). Target: at most 5 %.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

from rich.console import Console
from rich.table import Table
from transformers import AutoTokenizer

from tbrl.episode import cases
from tbrl.episode.corpus import TOOLS, Corpus
from tbrl.episode.interpretation import Interpreter
from tbrl.episode.rendering import Renderer
from tbrl.episode.serving_parser import ServingCrash, ServingParser
from tbrl.policy.builtin import policy_folder


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("--seconds", type=float, default=1.0, help="per measurement")
    arguments.add_argument("--turn-ms", type=float, default=8.0, help="CPU time of a rollout turn")
    options = arguments.parse_args()
    tokenizer = AutoTokenizer.from_pretrained(policy_folder("builtin:base"))
    renderer = Renderer(tokenizer)
    reader = Interpreter(tokenizer, TOOLS)
    parser = ServingParser(tokenizer, TOOLS, reader.tool_format)
    console = Console(width=120)
    console.print(readings(reader, parser, workloads(renderer, reader), options.seconds))
    console.print(turn_costs(renderer, reader, options.seconds, options.turn_ms))


def workloads(renderer: Renderer, reader: Interpreter) -> dict[str, list[str]]:
    """Outputs by kind, without stop tokens."""
    opening = [{"role": "user", "content": "hi"}]
    turns = [
        renderer.assistant_turn([*opening, Corpus(seed, reasons=False).assistant()], TOOLS)
        for seed in range(200)
    ]
    spelled = [reader.text(reader.raw_text(ids)) for ids in turns]
    call = cases.xml_call("book", item="mower", count="2", price="9.5", tags='["a"]')
    thought = "<think>\n" + "The customer wants another item. " * 300 + "\n</think>\n\n"
    return {
        "short turns": spelled,
        "one call": [call],
        "10 KB of reasoning, call": [thought + call],
        "20 calls": ["\n".join([call] * 20)],
        "200 KB argument": [cases.xml_call("book", item="x y " * 50_000)],
        "call not closed": [call[:-12]],
        "10,000 openers": ["<tool_call>" * 10_000],
    }


def readings(
    reader: Interpreter, parser: ServingParser, kinds: dict[str, list[str]], seconds: float
) -> Table:
    def theirs(text: str) -> None:
        with suppress(ServingCrash):  # malformed; the time it took counts all the same
            parser.read_text(text)

    table = Table("output", "bytes", "tbrl turns/s", "MB/s", "vLLM turns/s", "MB/s", "ratio")
    for name, texts in kinds.items():
        size = sum(len(text.encode()) for text in texts) / len(texts)
        ours = rate(lambda text: reader.read_text(text, "stop"), texts, seconds)
        other = rate(theirs, texts, seconds)
        table.add_row(
            name,
            f"{size:,.0f}",
            f"{ours:,.0f}",
            f"{ours * size / 1e6:,.1f}",
            f"{other:,.0f}",
            f"{other * size / 1e6:,.2f}",
            f"{ours / other:,.0f}x",
        )
    return table


def turn_costs(renderer: Renderer, reader: Interpreter, seconds: float, turn_ms: float) -> Table:
    """What one turn of a rollout costs in words."""
    opening = [{"role": "system", "content": "policy " * 100}, {"role": "user", "content": "hi"}]
    turn = {"role": "assistant", "content": "", "reasoning_content": ""}
    function = {"name": "book", "arguments": {"item": "mower", "count": 2}}
    turn["tool_calls"] = [{"type": "function", "function": function}]
    ids = renderer.assistant_turn([*opening, turn], TOOLS)
    answer = [{"role": "tool", "name": "book", "content": '{"id": 123, "status": "booked"}'}]
    steps: dict[str, Callable[[Sequence[int]], object]] = {
        "read the sampled ids": lambda sampled: reader.read(sampled, "stop"),
        "render the delta": lambda sampled: renderer.delta(answer, sampled, TOOLS),
    }
    table = Table("step of a turn", "us", f"share of {turn_ms:g} ms")
    total = 0.0
    for name, step in steps.items():
        cost = 1e6 / rate(step, [ids], seconds)
        total += cost
        table.add_row(name, f"{cost:.0f}", f"{cost / turn_ms / 10:.2f} %")
    table.add_row("both", f"{total:.0f}", f"{total / turn_ms / 10:.2f} %")
    first = 1e6 / rate(lambda _: renderer.prompt(opening, TOOLS), [ids], seconds)
    table.add_row("first prompt (once an episode)", f"{first:.0f}", "")
    return table


def rate(work: Callable[[Any], object], items: Sequence[Any], seconds: float) -> float:
    """Items a CPU second."""
    done, started = 0, time.process_time()
    while (spent := time.process_time() - started) < seconds:
        for item in items:
            work(item)
        done += len(items)
    return done / spent


if __name__ == "__main__":
    main()
