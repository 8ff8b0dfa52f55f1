"""Difficulty posterior, selection, split, yield, curation as a whole."""

from dataclasses import replace
from itertools import product
from math import comb

import numpy as np
import orjson
import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.integrate import quad
from scipy.stats import beta

from tbrl.curation.curate import CurationRequest, curate
from tbrl.curation.expected_yield import mixed_probability, pool_yield
from tbrl.curation.posterior import (
    BANDS,
    band_masses,
    band_of,
    check_boundaries,
    more_probes_until_certain,
)
from tbrl.curation.probes import Probes, read_probes
from tbrl.curation.selection import Rule, Screen, select
from tbrl.curation.split import stratified_split
from tbrl.curation.sweep import grid, sweep
from tbrl.curation.sweep_page import sweep_page
from tbrl.errors import ConfigError
from tbrl.tasks.load import read_refs
from tbrl.types import GradingSpec, PublicTask, Task

# ---------------------------------------------------------------- posterior


def test_three_of_eight_is_difficult_with_54_percent():
    masses = band_masses(3, 8)
    law = beta(3.5, 5.5)
    assert masses[1] == pytest.approx(law.cdf(0.40) - law.cdf(0.08))
    assert round(100 * masses[1], 1) == 54.0
    assert band_of(3, 8) == "difficult"


@settings(deadline=None)
@given(st.integers(0, 60), st.data())
def test_masses_are_a_distribution_and_bands_rise_with_successes(n, data):
    k = data.draw(st.integers(0, n))
    assert band_masses(k, n).sum() == pytest.approx(1.0)
    if n > 0 and k < n:
        assert BANDS.index(band_of(k, n)) <= BANDS.index(band_of(k + 1, n))


def test_equal_masses_go_to_the_harder_band():
    symmetric = (0.1, 0.4, 0.6, 0.9)
    for n in (2, 4, 8):
        masses = band_masses(n // 2, n, symmetric)
        assert masses[1] == pytest.approx(masses[3], rel=1e-9)
    # 1 of 2: Beta(1.5, 1.5) has its mass in the two outer middle bands, equally.
    assert masses.argmax() == 2
    assert band_of(1, 2, symmetric) == "difficult"
    # However the two masses are rounded: outer bands only, so that the tie is the maximum.
    for n in range(2, 60, 2):
        assert band_of(n // 2, n, (0.01, 0.499, 0.501, 0.99)) == "difficult"


def test_no_probes_have_no_band():
    assert band_of(0, 0) == "unprobed"


@pytest.mark.parametrize(
    "edges", [(), (0.1, 0.2, 0.3), (0.4, 0.3, 0.6, 0.9), (0, 0.4, 0.6, 0.9), (0.1, 0.1, 0.6, 0.9)]
)
def test_bad_boundaries_are_refused(edges):
    with pytest.raises(ConfigError, match=r"curation\.boundaries"):
        check_boundaries(edges)


def test_impossible_counts_are_refused():
    with pytest.raises(ConfigError, match="9 successes of 8"):
        band_of(9, 8)


def test_probe_advice_is_the_fewest_that_suffice():
    def expected_certainty(k, n, more):
        def weight(j):
            density = beta(k + 0.5, n - k + 0.5).pdf
            return quad(lambda p: comb(more, j) * p**j * (1 - p) ** (more - j) * density(p), 0, 1)[
                0
            ]

        return sum(weight(j) * band_masses(k + j, n + more).max() for j in range(more + 1))

    assert more_probes_until_certain(0, 40) == 0
    advice = more_probes_until_certain(0, 8, certainty=0.85)
    assert expected_certainty(0, 8, advice) >= 0.85 > expected_certainty(0, 8, advice - 1)
    assert more_probes_until_certain(4, 10, certainty=0.999, limit=32) is None


# ---------------------------------------------------------------- yield


@pytest.mark.parametrize("group", [2, 3, 5, 8])
def test_mixed_probability_is_the_integral_over_the_posterior(group):
    for k, n in product(range(5), [4]):
        density = beta(k + 0.5, n - k + 0.5).pdf

        def mixed(p, density=density):
            return (1 - p**group - (1 - p) ** group) * density(p)

        integral = quad(mixed, 0, 1)[0]
        assert mixed_probability(k, n, group) == pytest.approx(integral, abs=1e-6)


def test_refills_follow_from_the_mean_of_the_pool():
    counts = [(0, 8), (4, 8), (8, 8)]
    expected = pool_yield(counts, group_size=8, groups_per_step=18)
    mean = np.mean([mixed_probability(k, n, 8) for k, n in counts])
    assert expected.attempts_per_step == pytest.approx(18 / mean)
    assert expected.refills_per_step == pytest.approx(18 / mean - 18)


def test_refills_are_those_of_a_simulated_stream():
    rng = np.random.default_rng(0)
    counts = [(2, 8), (5, 8), (7, 8)] * 40
    expected = pool_yield(counts, group_size=8, groups_per_step=18)
    used = 0
    for _ in range(300):
        accepted = 0
        while accepted < 18:
            k, n = counts[rng.integers(len(counts))]
            successes = rng.binomial(8, rng.beta(k + 0.5, n - k + 0.5))
            accepted += 0 < successes < 8
            used += 1
    assert used / 300 == pytest.approx(expected.attempts_per_step, rel=0.03)


def test_a_group_of_one_is_refused():
    with pytest.raises(ConfigError, match="can never be mixed"):
        mixed_probability(1, 2, 1)


# ---------------------------------------------------------------- selection and split


def probes_of(**results):
    return {ref: Probes(ref, tuple(map(bool, r))) for ref, r in results.items()}


def test_every_reason_is_given():
    probes = probes_of(
        hard=[0] * 16, good=[1, 0, 0, 1, 0], short=[1, 0], easy=[1] * 40, no=[1, 0, 1, 0]
    )
    reference = probes_of(hard=[0, 0], good=[1, 1], short=[1], easy=[1, 1], no=[0, 0, 0])
    verdicts = select(
        ["hard", "good", "short", "easy", "no", "out", "new"],
        probes,
        Rule(min_clean=4),
        excluded=["out"],
        screen=Screen(min_clean=1, min_successes=1),
        screen_probes={**reference, **probes_of(new=[1])},
    )
    assert {v.task_ref: v.reason for v in verdicts} == {
        "hard": "unsolvable",
        "good": "kept",
        "short": "too_few_probes",
        "easy": "band",
        "no": "unsolvable",
        "out": "excluded",
        "new": "too_few_probes",
    }


def test_screen_accepts_by_posterior_where_successes_are_too_few():
    (probes,) = probes_of(t=[1, 0]).values()
    assert not Screen(min_successes=2).passes(probes)
    assert Screen(min_successes=2, rate=0.05, probability=0.9).passes(probes)
    assert not Screen(min_successes=2, min_clean=3, rate=0.05, probability=0.9).passes(probes)


def test_an_unknown_band_is_named():
    with pytest.raises(ConfigError, match=r"curation\.keep: unknown band 'hard'"):
        Rule(keep=("hard",))


@settings(max_examples=50, deadline=None)
@given(
    st.dictionaries(st.text("abc", min_size=1), st.sampled_from("xyz"), min_size=1, max_size=40),
    st.floats(0, 0.9),
    st.randoms(),
)
def test_split_is_stratified_and_does_not_depend_on_order(strata, share, random):
    strata = {ref: (stratum,) for ref, stratum in strata.items()}
    shuffled = list(strata.items())
    random.shuffle(shuffled)
    train, test = stratified_split(strata, share, seed=3)
    assert (train, test) == stratified_split(dict(shuffled), share, seed=3)
    assert sorted(train + test) == sorted(strata)
    assert len(test) == round(len(strata) * share)
    for stratum in set(strata.values()):
        members = [ref for ref, s in strata.items() if s == stratum]
        assert abs(sum(ref in test for ref in members) - share * len(members)) <= 1


def test_another_seed_gives_another_split():
    strata = {f"t{i}": ("s",) for i in range(40)}
    assert stratified_split(strata, 0.5, 0) != stratified_split(strata, 0.5, 1)


# ---------------------------------------------------------------- probe files


def jsonl(path, rows):
    path.write_bytes(b"".join(orjson.dumps(row) + b"\n" for row in rows))
    return path


def test_foreign_layouts_are_read_by_dotted_names(tmp_path):
    rows = [
        {"task": {"id": "t"}, "grade": {"ok": 1}},
        {"task": {"id": "t"}, "grade": {"ok": 0}},
        {"task": {"id": "t"}, "crashed": "timeout"},
    ]
    fields = {"uid": "task.id", "result": "grade.ok", "error": "crashed"}
    found = read_probes([jsonl(tmp_path / "p.jsonl", rows)], fields)
    assert found == {"t": Probes("t", (True, False), errors=1)}


def test_system_errors_are_never_counted_as_failures_of_the_policy(tmp_path):
    rows = [
        {"uid": "t", "test_result": {"result": True}},
        {"uid": "t", "test_result": {"result": False, "is_system_error": True}},
        {"uid": "t", "is_system_error": True},
    ]
    found = read_probes([jsonl(tmp_path / "p.jsonl", rows)])["t"]
    assert (found.k, found.n, found.errors) == (1, 1, 2)


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"uid": "t"}, r"p\.jsonl:1: field test_result\.result is missing"),
        ({"uid": 3}, r"p\.jsonl:1: uid must be a name"),
        ({"uid": "t", "test_result": {"result": "x"}}, r"p\.jsonl:1: test_result\.result must be"),
        ([], r"p\.jsonl:1: a probe must be an object"),
    ],
)
def test_malformed_rows_name_file_line_and_field(tmp_path, row, message):
    with pytest.raises(ConfigError, match=message):
        read_probes([jsonl(tmp_path / "p.jsonl", [row])])


def test_two_clean_results_of_one_attempt_are_refused(tmp_path):
    rows = [{"uid": "t", "test_result": {"result": True}, "metadata": {"repetition": 0}}] * 2
    with pytest.raises(ConfigError, match=r"p\.jsonl:2: second clean result of t attempt 0"):
        read_probes([jsonl(tmp_path / "p.jsonl", rows)])


# ---------------------------------------------------------------- curate


def tasks_of(count=12):
    return [
        Task(
            PublicTask(f"t{i:02}", f"d{i % 2}", "d/compact", "?", {}, {}, f"template{i % 3}"),
            GradingSpec(f"t{i:02}", ()),
        )
        for i in range(count)
    ]


def request_of(tmp_path, tasks, **changes):
    rows = [
        {"uid": t.task_ref, "metadata": {"repetition": a}, "test_result": {"result": a < i % 9}}
        for i, t in enumerate(tasks)
        for a in range(8)
    ]
    base = {"rule": Rule(), "group_size": 8, "groups_per_step": 4, "test_share": 0.25}
    probe_files = (jsonl(tmp_path / "probes.jsonl", rows),)
    return CurationRequest(tasks, probe_files, **{**base, **changes})


def files_of(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_curation_is_idempotent_and_does_not_depend_on_the_order_of_tasks(tmp_path):
    request = request_of(tmp_path, tasks_of())
    curate(request, tmp_path / "a")
    first = files_of(tmp_path / "a")
    curate(request, tmp_path / "a")
    curate(CurationRequest(**{**_fields(request), "tasks": tasks_of()[::-1]}), tmp_path / "b")
    assert files_of(tmp_path / "a") == first == files_of(tmp_path / "b")


def _fields(request):
    return {name: getattr(request, name) for name in request.__dataclass_fields__}


def test_files_agree_with_each_other(tmp_path):
    result = curate(request_of(tmp_path, tasks_of()), tmp_path / "out")
    train, test = (read_refs(tmp_path / "out" / f"selection{s}.yaml") for s in ("", "_test"))
    rows = list(map(orjson.loads, (tmp_path / "out" / "aggregates.jsonl").open("rb")))
    audit = orjson.loads((tmp_path / "out" / "audit.json").read_bytes())
    assert (tuple(train), tuple(test)) == (result.train, result.test)
    assert not set(train) & set(test)
    assert {r["task_ref"] for r in rows if r["reason"] == "kept"} == {*train, *test}
    assert audit["kept"] == len(train) + len(test) and audit["candidates"] == len(rows) == 12
    assert sum(audit["bands"].values()) == 12


def test_a_changed_probe_changes_the_manifest(tmp_path):
    request = request_of(tmp_path, tasks_of())
    curate(request, tmp_path / "a")
    path = request.probe_files[0]
    path.write_bytes(path.read_bytes().replace(b"true", b"false", 1))
    curate(request, tmp_path / "b")
    manifests = [orjson.loads((tmp_path / d / "manifest.json").read_bytes()) for d in "ab"]
    assert manifests[0]["inputs"]["probe_files"] != manifests[1]["inputs"]["probe_files"]
    assert manifests[0]["inputs"]["candidates"] == manifests[1]["inputs"]["candidates"]


def test_exclusion_lists_are_read_in_both_forms(tmp_path):
    (tmp_path / "x.txt").write_text("t03  # seen in the demo\n\nt04\n")
    (tmp_path / "y.yaml").write_text(yaml.safe_dump(["t05"]))
    lists = (tmp_path / "x.txt", tmp_path / "y.yaml")
    result = curate(request_of(tmp_path, tasks_of(), exclusion_files=lists), tmp_path / "out")
    assert not {"t03", "t04", "t05"} & {*result.train, *result.test}


def test_evaluation_only_tasks_never_enter_a_pool(tmp_path):
    tasks = tasks_of()
    tasks[3] = replace(tasks[3], public=replace(tasks[3].public, eval_only=True))
    with pytest.raises(ConfigError, match=r"t03.*stage=curate|stage=curate.*t03"):
        curate(request_of(tmp_path, tasks), tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_an_empty_selection_says_why(tmp_path):
    request = request_of(tmp_path, tasks_of(), rule=Rule(min_clean=9))
    with pytest.raises(ConfigError, match="nothing is kept of 12 candidates: 12 too_few_probes"):
        curate(request, tmp_path / "out")


# ---------------------------------------------------------------- sweep


def test_sweep_does_not_depend_on_the_number_of_threads():
    rng = np.random.default_rng(1)
    probes = {f"t{i}": Probes(f"t{i}", tuple(rng.random(16) < rng.random())) for i in range(60)}
    points = grid([(0.08, 0.4, 0.6, 0.9), (0.2, 0.4, 0.6, 0.8)], (4, 8), (4, 0))
    keep = ("difficult", "intermediate", "frequently_solved")
    one, two = (sweep(probes, points, keep, 18, threads=t) for t in (1, 3))
    assert one == two and len(one) == 8
    narrow, wide = one[5], one[1]
    assert wide.pool > narrow.pool
    assert all(sum(r.bands.values()) == 60 for r in one)


def test_more_probes_make_membership_more_stable():
    rng = np.random.default_rng(2)
    rates = rng.random(200)
    probes = {f"t{i}": Probes(f"t{i}", tuple(rng.random(200) < p)) for i, p in enumerate(rates)}
    few, many = sweep(
        probes, grid([(0.08, 0.4, 0.6, 0.9)], probes=(4, 200)), ("difficult", "intermediate"), 18
    )
    assert many.stability > few.stability + 0.1 and many.firm > few.firm


def test_sweep_page_shows_every_setting_and_band():
    rng = np.random.default_rng(3)
    probes = {f"t{i}": Probes(f"t{i}", tuple(rng.random(8) < rng.random())) for i in range(40)}
    edges = [(0.08, 0.4, 0.6, 0.9), (0.1, 0.3, 0.7, 0.9), (0.05, 0.5, 0.7, 0.95)]
    results = sweep(probes, grid(edges), ("difficult", "intermediate"), 18)
    page = sweep_page(results, "<sweep>")
    assert all(r.point.name in page for r in results) and page.count("<rect") == 3 * 6
    assert "&lt;sweep&gt;" in page and "<sweep>" not in page
    with pytest.raises(ConfigError, match="no settings"):
        sweep_page([], "t")
