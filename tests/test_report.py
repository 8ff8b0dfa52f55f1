"""The report: self-contained, honest about what is missing, no golden where it must not be."""

import io
import re
from dataclasses import replace
from html.parser import HTMLParser

import orjson
import pytest
from evaluation_helpers import LABELS, FakeRun, episode_of, scored
from rich.console import Console

from tbrl.config import PriceConfig, PricesConfig
from tbrl.errors import ConfigError
from tbrl.evaluation.campaign import Campaign, run_campaign
from tbrl.evaluation.metrics import TaskLabels
from tbrl.evaluation.report import headline, probe_advice, render, write_report
from tbrl.evaluation.report_data import ReportOptions, load_report
from tbrl.evaluation.task_pages import KIND_OF_DIFFERENCE, by_record
from tbrl.evaluation.terminal import print_summary
from tbrl.types import RowChange

pytestmark = pytest.mark.anyio
PRICES = PricesConfig(agent=PriceConfig(input=1.0, output=2.0))
GOLDEN = RowChange("orders", '{"id":1}', "updated", "status", '"golden-canary"', '"closed"')


@pytest.fixture
def anyio_backend():
    return "asyncio"


async def evaluate(root, name, run, labels=None, **changes):
    job = Campaign(root / "evaluation" / f"{name}.jsonl", labels or LABELS, 4, name)
    return await run_campaign(replace(job, **changes), run)


def failing(labels=None):
    """A run whose attempts all miss the golden state."""

    async def run(task_ref, attempt, try_):
        return episode_of(task_ref, scored(False, attribution="ticket_only", differences=(GOLDEN,)))

    return run


def training(root, steps=3):
    rows = [
        {
            "step": s,
            "reward_mean": 0.1 * s,
            "accepted": 2,
            "zero_variance": 1,
            "failed": 0,
            "seconds": {"rollout": 3.0, "learner": 1.0},
        }
        for s in range(steps)
    ]
    (root / "metrics.jsonl").write_bytes(b"".join(orjson.dumps(r) + b"\n" for r in rows))


class Page(HTMLParser):
    """Collects ids, links and loads; void elements need no end."""

    VOID = frozenset({"meta", "input", "link", "br", "img"})

    def __init__(self, html):
        super().__init__()
        self.ids, self.links, self.loads, self.open, self.text = set(), [], [], [], []
        self.feed(html)

    def handle_starttag(self, tag, attributes):
        found = dict(attributes)
        if "id" in found:
            assert found["id"] not in self.ids, f"id {found['id']} twice"
            self.ids.add(found["id"])
        if tag == "a":
            self.links.append(found["href"])
        self.loads += [found[k] for k in ("src", "srcset", "data") if k in found]
        if tag == "link":
            self.loads.append(found.get("href"))
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attributes):
        pass

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text.append(data)


async def test_page_is_whole_and_loads_nothing(tmp_path):
    await evaluate(tmp_path, "before", failing())
    await evaluate(tmp_path, "after", FakeRun({("d/refund/0", 1): False}))
    training(tmp_path)
    html = render(load_report(tmp_path, ReportOptions(prices=PRICES)))
    page = Page(html)
    assert page.open == [] and page.loads == []
    assert not re.search(r"url\(|@import|https?://", html)
    assert {link.removeprefix("#") for link in page.links} <= page.ids
    assert {"task-0", "task-1", "task-2", "learning", "reliability", "cost"} <= page.ids


async def test_headline_is_that_of_the_metrics(tmp_path):
    await evaluate(tmp_path, "before", FakeRun(default=False))
    await evaluate(tmp_path, "after", FakeRun({("e/escalate/0", a): False for a in range(4)}))
    rows = {row.name: row for row in headline(load_report(tmp_path, ReportOptions()))}
    assert list(rows) == ["All held-out tasks", "Ordinary templates"]
    assert rows["All held-out tasks"].paired.difference.value == pytest.approx(2 / 3)
    assert rows["Ordinary templates"].paired.difference.value == 1.0


async def test_held_out_domains_are_a_row_of_their_own(tmp_path):
    labels = {**LABELS, "z/move/0": TaskLabels("z", "move", transfer=True)}
    for name in ("before", "after"):
        await evaluate(tmp_path, name, FakeRun(), labels)
    rows = {row.name: row.after.tasks for row in headline(load_report(tmp_path, ReportOptions()))}
    assert (rows["Training domains"], rows["Held-out domains"]) == (3, 1)


async def test_an_incomplete_run_is_said_and_has_no_headline(tmp_path):
    await evaluate(tmp_path, "before", FakeRun())
    await evaluate(tmp_path, "after", FakeRun())
    path = tmp_path / "evaluation" / "after.jsonl"
    path.write_bytes(b"".join(path.read_bytes().splitlines(keepends=True)[:-1]))
    report = load_report(tmp_path, ReportOptions())
    html = render(report)
    assert "after is incomplete" in html and "11 of 12 attempts scored, 1 missing" in html
    assert all(row.after is None and row.paired is None for row in headline(report))


async def test_golden_of_evaluation_only_tasks_is_behind_an_option(tmp_path):
    labels = {ref: replace(label, eval_only=True) for ref, label in LABELS.items()}
    await evaluate(tmp_path, "after", failing(), labels)
    hidden = render(load_report(tmp_path, ReportOptions()))
    shown = render(load_report(tmp_path, ReportOptions(show_golden=True)))
    assert "golden-canary" not in hidden and "are not shown for evaluation-only" in hidden
    assert "golden-canary" in shown


async def test_golden_of_embedded_tasks_is_shown(tmp_path):
    await evaluate(tmp_path, "after", failing())
    assert "golden-canary" in render(load_report(tmp_path, ReportOptions()))


async def test_what_a_policy_wrote_cannot_become_markup(tmp_path):
    evil = '</section><script>alert("x")</script>'

    async def run(task_ref, attempt, try_):
        episode = episode_of(task_ref, scored(True))
        turns = tuple(replace(turn, text=evil, reasoning=evil) for turn in episode.turns)
        return replace(episode, turns=turns)

    await evaluate(tmp_path, "after", run, {evil: TaskLabels(evil, evil)} | LABELS)
    html = render(load_report(tmp_path, ReportOptions()))
    assert "<script>alert" not in html and html.count("<script>") == 1
    assert Page(html).open == []


def test_changes_are_put_together_by_record():
    def change(key, column, kind="deleted"):
        return {
            "table": "t",
            "key": key,
            "kind": kind,
            "column": column,
            "before": "1",
            "after": "",
        }

    rows = [
        change("[1]", "a"),
        change("[1]", "b"),
        change("[2]", "a"),
        change("[1]", "c", "updated"),
    ]
    found = by_record(rows, KIND_OF_DIFFERENCE)
    assert [(r.key, r.kind, [c[0] for c in r.cells]) for r in found] == [
        ("[1]", "missing", ["a", "b"]),
        ("[2]", "missing", ["a"]),
        ("[1]", "wrong", ["c"]),
    ]


def test_probe_advice_counts_what_is_certain_and_what_never_will_be(tmp_path):
    rows = [{"n": 8, "more_probes": need} for need in (0, 0, 12, 30, 90, None)]
    rows.append({"n": 0, "more_probes": 1})
    report = replace(load_report(tmp_path, ReportOptions()), curation=tuple(rows))
    assert probe_advice(report) == (
        "The band of 2 of 6 probed tasks is 90 % certain; half of the others need up to 30 more"
        " probes, and 1 lie too close to a boundary for any budget."
    )


async def test_only_results_files_are_read_as_results(tmp_path):
    await evaluate(tmp_path, "after", FakeRun())
    (tmp_path / "evaluation" / "tasks.jsonl").write_text("not a results file")
    assert [run.name for run in load_report(tmp_path, ReportOptions()).runs] == ["after"]


async def test_tasks_beyond_the_limit_are_counted_not_dropped(tmp_path):
    await evaluate(tmp_path, "after", FakeRun())
    html = render(load_report(tmp_path, ReportOptions(max_task_pages=1)))
    page = Page(html)
    assert "task-0" in page.ids and "task-1" not in page.ids
    assert all(ref in html for ref in LABELS) and "2 tasks have no page here" in html


async def test_an_empty_run_says_what_it_lacks(tmp_path):
    report = load_report(tmp_path, ReportOptions())
    html = render(report)
    for line in ("no evaluation/before.jsonl", "no training steps", "no prices"):
        assert line in html
    with pytest.raises(ConfigError, match="is no run folder"):
        load_report(tmp_path / "none", ReportOptions())


async def test_runs_are_compared_by_file_and_by_folder(tmp_path):
    for name in ("one", "two"):
        await evaluate(tmp_path / name, "after", FakeRun())
    one, two = tmp_path / "one", tmp_path / "two"
    report = load_report(one, ReportOptions(), [two, two / "evaluation" / "after.jsonl"])
    assert [run.name for run in report.runs] == ["after", "two", "after'"]
    (tmp_path / "three").mkdir()
    with pytest.raises(ConfigError, match=r"three holds no evaluation/after\.jsonl"):
        load_report(one, ReportOptions(), [tmp_path / "three"])


async def test_the_file_and_the_terminal_say_the_same(tmp_path):
    await evaluate(tmp_path, "before", failing())
    await evaluate(tmp_path, "after", FakeRun({("d/refund/0", 1): False}))
    report = load_report(tmp_path, ReportOptions())
    write_report(report, tmp_path / "report.html")
    out = io.StringIO()
    print_summary(report, Console(file=out, width=140))
    for text in ("91.7", "+91.7", "2 of 3"):
        assert text in out.getvalue()
    page = (tmp_path / "report.html").read_text()
    assert "91.7" in page and not (tmp_path / "report.html.tmp").exists()
