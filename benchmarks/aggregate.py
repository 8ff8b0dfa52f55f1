"""Aggregating results files: tbrl against ThinkingBox's `tb agg`, or a plain json-module reader.

    python benchmarks/aggregate.py [--tb PATH_TO_tb] [--skip-slim]

Makes a campaign of 507 x 20 full rows (messages, calls, replies; about 180 MB) and one of
1,000,000 slim rows in a temporary folder, then measures each reader in a process of its own: CPU
seconds (user + system, start-up included), wall seconds, peak resident memory. Targets: full rows
at least 5 times faster than `tb agg` in CPU seconds; slim rows under 2 GB.

The columnar readers only count rows and passes; tbrl also checks every row's fields, finds
duplicates and mixed versions, and sums tokens, turns, seconds and failure classes.
"""

from __future__ import annotations

import argparse
import os
import random
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import orjson
from rich.console import Console
from rich.table import Table

from tbrl.evaluation.results import FORMAT
from tbrl.usage import RoleUsage, Usage

ROOT = Path(__file__).resolve().parent.parent
TOKENS = RoleUsage(agent=Usage(6, 6000, 4000, 300)).to_json()

TBRL = """
from pathlib import Path
from tbrl.evaluation.aggregate import aggregate
from tbrl.evaluation.metrics import summarize
total = aggregate(Path({path!r}))
summary = summarize(total.attempts())
print(total.rows, total.successes)
"""

PLAIN = """
import json
from collections import defaultdict
passed, runs, tokens = defaultdict(int), defaultdict(int), 0
with open({path!r}, encoding="utf-8") as file:
    for line in file:
        row = json.loads(line)
        runs[row["uid"]] += 1
        passed[row["uid"]] += bool(row["test_result"]["result"])
        tokens += sum(u["output_tokens"] for u in row["usage"] or ())
print(sum(runs.values()), sum(passed.values()))
"""

POLARS = """
import polars as pl
schema = {{
    "uid": pl.String,
    "test_result": pl.Struct({{"result": pl.Boolean}}),
    "tbrl": pl.Struct({{"attempt": pl.Int64, "tokens": pl.Struct({{"agent": pl.Struct(
        {{"input": pl.Int64, "output": pl.Int64}})}})}}),
}}
frame = pl.scan_ndjson({path!r}, schema=schema, low_memory=True).group_by("uid").agg(
    pl.len().alias("n"), pl.col("test_result").struct.field("result").sum().alias("c"))
done = frame.collect(engine="streaming")
print(done["n"].sum(), done["c"].sum())
"""

PYARROW = """
import pyarrow as pa, pyarrow.json as pj
schema = pa.schema([
    ("uid", pa.string()), ("test_result", pa.struct([("result", pa.bool_())])),
    ("tbrl", pa.struct([("attempt", pa.int64())])),
])
rows = passed = 0
for batch in pj.open_json({path!r}, read_options=pj.ReadOptions(block_size=1 << 24),
        parse_options=pj.ParseOptions(explicit_schema=schema, unexpected_field_behavior="ignore")):
    rows += batch.num_rows
    passed += batch.column("test_result").field("result").true_count
print(rows, passed)
"""


@dataclass(frozen=True, slots=True)
class Measured:
    """One reader on one file."""

    cpu_s: float
    wall_s: float
    peak_mb: float
    output: str


def measure(command: list[str]) -> Measured:
    """Run a command; CPU and peak memory are those of the child."""
    started = time.perf_counter()
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    child = subprocess.Popen(command, stdout=subprocess.PIPE, env=environment)
    assert child.stdout is not None
    output = child.stdout.read().decode(errors="replace")
    _, status, usage = os.wait4(child.pid, 0)
    if status:
        raise SystemExit(f"{command[0]} failed with status {status}")
    wall = time.perf_counter() - started
    return Measured(usage.ru_utime + usage.ru_stime, wall, usage.ru_maxrss / 1024, output.strip())


def make_campaign(path: Path, tasks: int, attempts: int, full: bool) -> None:
    """Rows of the shape that campaigns write; full ones hold a conversation of 30 messages."""
    rng = random.Random(0)
    words = ["".join(rng.choices("abcdefghijklmnopqrst", k=rng.randint(3, 9))) for _ in range(2000)]
    policy = " ".join(rng.choices(words, k=1200))
    with path.open("wb") as file:
        for task in range(tasks):
            rate = rng.random()
            for attempt in range(attempts):
                messages = conversation(rng, words, policy) if full else []
                row = row_of(task, attempt, rng.random() < rate, messages)
                file.write(orjson.dumps(row, option=orjson.OPT_APPEND_NEWLINE))


def conversation(rng: random.Random, words: list[str], policy: str) -> list[dict[str, object]]:
    def text(role: str, count: int, tag: str = "text") -> dict[str, object]:
        content = " ".join(rng.choices(words, k=count))
        return {"T": "Text", "role": role, "content": content, "metadata": {"tag": tag}}

    messages: list[dict[str, object]] = [{"T": "Text", "role": "system", "content": policy}]
    for turn in range(6):
        call = {"T": "ToolCall", "name": "get_item", "arguments": {"id": turn}, "id": f"c{turn}"}
        reply = '{"note": "' + " ".join(rng.choices(words, k=60)) + '"}'
        messages += [
            text("user", 20),
            text("assistant", 40, "think"),
            {"T": "ParallelToolCall", "tool_calls": [call]},
            {"T": "ToolResponse", "name": "get_item", "content": reply, "id": f"c{turn}"},
            text("assistant", 30),
        ]
    return messages


def row_of(task: int, attempt: int, passed: bool, messages: list[dict[str, object]]) -> dict:
    turns = len(messages) // 5
    usage = {"input_tokens": 1000, "output_tokens": 50, "total_tokens": 1050}
    return {
        "uid": f"domain{task % 5}/template{task % 23}/{task}",
        "messages": messages,
        "test_result": {"result": passed, "reward": float(passed), "is_system_error": False},
        "usage": [usage] * turns,
        "metadata": {"repetition": attempt, "execution_time": 10.0},
        "is_system_error": False,
        "finish_reason": "done",
        "tbrl": {
            "format": FORMAT,
            "attempt": attempt,
            "policy": "p",
            "policy_version": 3,
            "domain": f"domain{task % 5}",
            "template": f"template{task % 23}",
            "ordinary": True,
            "finish_reason": "done",
            "attribution": "" if passed else "business_write_wrong",
            "agent_turns": 2 * turns,
            "tokens": TOKENS,
            "seconds": {"total": 10.0},
        },
    }


def compare(path: Path, tb: str | None, title: str) -> Table:
    """All readers on one file, after one warm-up read of it."""
    with path.open("rb") as file:
        while file.read(1 << 20):
            pass
    scripts = {"tbrl": TBRL, "plain json module": PLAIN, "polars": POLARS, "pyarrow": PYARROW}
    results = {
        name: measure([sys.executable, "-c", script.format(path=str(path))])
        for name, script in scripts.items()
    }
    counts = {name: result.output for name, result in results.items()}
    if len(set(counts.values())) != 1:
        raise SystemExit(f"readers disagree on rows and passes: {counts}")
    if tb:
        results["tb agg"] = measure([tb, "agg", "-f", "json", str(path)])
    table = Table(title=f"{title}, {path.stat().st_size / 1e6:.0f} MB")
    for column in ("reader", "CPU s", "wall s", "peak MB", "tbrl is faster by (CPU)"):
        table.add_column(column, justify="left" if column == "reader" else "right")
    ours = results["tbrl"].cpu_s
    for name, r in results.items():
        ratio = "" if name == "tbrl" else f"{r.cpu_s / ours:.1f} x"
        table.add_row(name, f"{r.cpu_s:.2f}", f"{r.wall_s:.2f}", f"{r.peak_mb:.0f}", ratio)
    return table


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tb", default=shutil.which("tb"), help="ThinkingBox's command")
    parser.add_argument("--skip-slim", action="store_true", help="leave the million rows out")
    options = parser.parse_args()
    console = Console(width=100)
    if not options.tb:
        console.print("`tb` is not installed: the plain json-module reader is the alternative.")
    with tempfile.TemporaryDirectory() as folder:
        full, slim = Path(folder) / "full.jsonl", Path(folder) / "slim.jsonl"
        make_campaign(full, 507, 20, full=True)
        console.print(compare(full, options.tb, "507 x 20 full rows"))
        if not options.skip_slim:
            make_campaign(slim, 50_000, 20, full=False)
            console.print(compare(slim, None, "1,000,000 slim rows"))
    own = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    console.print(f"(making the files took up to {own:.0f} MB here; CPU counts include start-up)")


if __name__ == "__main__":
    main()
