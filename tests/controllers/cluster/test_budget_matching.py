"""Budgets and pods are matched in slices of bounded work, once for each label map and set of selectors."""

from __future__ import annotations

import gc
from collections.abc import Generator, Mapping

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.builders import a_budget, a_pod

from gracectl.controllers.cluster import cache as matching
from gracectl.controllers.cluster.cache import INDEXING, SLICE, BudgetsByPod, ClusterCache, empty_cluster_cache
from gracectl.model.budget import PodDisruptionBudget
from gracectl.model.pod import Pod
from gracectl.model.selectors import LabelSelector, Requirement, selects
from gracectl.model.sharing import PackedLabels
from gracectl.policy.budget_index import BudgetIndex
from gracectl.runtime.slices import run_at_once


class Work:
    """What matches look at, and how much of that between two yields."""

    def __init__(self) -> None:
        self.matches = self.spent = self.longest = self.most = 0

    def add(self, cost: int) -> None:
        self.spent += cost
        self.longest = max(self.longest, cost)

    def slice_ended(self) -> None:
        self.most, self.spent = max(self.most, self.spent), 0


@pytest.fixture
def work(monkeypatch: pytest.MonkeyPatch) -> Work:
    seen, matches, put = Work(), LabelSelector.matches, BudgetIndex.put

    def counted_match(selector: LabelSelector, labels: Mapping[str, str]) -> bool:
        seen.matches += 1
        seen.add(1 + min(len(selector.match_labels) + len(selector.match_expressions), len(labels)))
        return matches(selector, labels)

    def counted_put(index: BudgetIndex, name: str, selector: LabelSelector | None) -> None:
        seen.add(INDEXING * (1 if selector is None else selector.size))
        put(index, name, selector)

    monkeypatch.setattr(LabelSelector, "matches", counted_match)
    monkeypatch.setattr(BudgetIndex, "put", counted_put)
    return seen


def observed_with(*budgets: PodDisruptionBudget) -> ClusterCache:
    observed = empty_cluster_cache()
    observed.budgets.replace(budgets)
    return observed


def names_by_pod(observed: ClusterCache, *pods: Pod) -> dict[str, list[str]]:
    budgets = observed.budgets_by_pod(pods)
    return {pod.name: [budget.name for budget in budgets[pod.uid]] for pod in pods if pod.uid in budgets}


def hostile(name: str, requirements: int) -> PodDisruptionBudget:
    absent = tuple(Requirement(f"{name}-{number}", "DoesNotExist") for number in range(requirements))
    is_tried = Requirement("app", "Exists")
    return a_budget(name, selector=LabelSelector({"app": "nothing"} if name < "b09" else {}, (is_tried, *absent)))


def test_the_work_between_two_yields_is_bounded_whatever_tenants_write(work: Work) -> None:
    budgets = [hostile(f"b{number:02}", 2_000) for number in range(30)]
    pods = [a_pod(f"p{number}", labels={"app": f"a-{number}"}) for number in range(100)]
    pods += [a_pod("many", labels=PackedLabels({"app": "", **{f"k{n}": "" for n in range(30_000)}}))]
    search = observed_with(*budgets).matcher.by_pod(pods)
    found: BudgetsByPod = {}

    def whole() -> Generator[None, None, None]:
        nonlocal found
        found = yield from search

    slices = 0
    for _ in whole():
        slices += 1
        work.slice_ended()
    work.slice_ended()
    assert slices >= 2
    assert work.most <= SLICE + work.longest
    assert {tuple(budget.name for budget in both) for both in found.values()} == {("b09", "b10")}
    assert len(found) == 101
    # None that requires another label, and none beyond the second that selects it.
    assert work.matches == 2 * 101


def test_labels_are_matched_once_until_a_selector_of_their_namespace_changes(work: Work) -> None:
    web, other = a_budget("web"), a_budget("other", namespace="office")
    observed, labels = observed_with(web, other), {"app": "web"}
    pods = [a_pod(f"p{number}", labels=labels) for number in range(50)]
    office = a_pod("office", namespace="office", labels=labels)
    assert names_by_pod(observed, *pods, office) == {pod.name: ["web"] for pod in pods} | {"office": ["other"]}
    assert work.matches == 2
    spent = msgspec.structs.replace(web, resource_version="2", disruptions_allowed=0)
    observed.budgets.put(spent)
    assert observed.budgets_by_pod((pods[0],)) == {pods[0].uid: (spent,)}
    assert work.matches == 2
    observed.budgets.put(msgspec.structs.replace(web, resource_version="3", selector=LabelSelector({"app": "db"})))
    assert names_by_pod(observed, *pods, office) == {"office": ["other"]}
    assert work.matches == 2  # it requires another label
    observed.budgets.remove(web.key)
    observed.budgets.put(a_budget("second"))
    assert names_by_pod(observed, *pods, office) == {pod.name: ["second"] for pod in pods} | {"office": ["other"]}


def test_an_answer_found_while_selectors_changed_is_not_remembered() -> None:
    observed = observed_with(*(hostile(f"b{number:02}", 2_000) for number in range(12)))
    pod = a_pod(labels={"app": "web"})
    search = observed.matcher.by_pod([pod])
    next(search)
    for number in range(12):
        observed.budgets.remove(("shop", f"b{number:02}"))
    assert run_at_once(search) == {}
    assert observed.budgets_by_pod((pod,)) == {}
    observed.budgets.put(a_budget("web"))
    assert names_by_pod(observed, pod) == {pod.name: ["web"]}


def test_the_memo_keeps_no_large_labels_alive_and_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    observed = observed_with(a_budget("web"))
    labels = PackedLabels({"app": "web"})
    assert names_by_pod(observed, a_pod(labels=labels)) == {"web-1": ["web"]}
    assert not [each for each in gc.get_referrers(labels) if isinstance(each, tuple)]
    monkeypatch.setattr(matching, "MEMO_BYTES", 10_000)
    for number in range(1_000):
        assert names_by_pod(observed, a_pod(labels={"app": "web", "n": str(number)})) == {"web-1": ["web"]}
    assert observed.matcher._bytes <= 12_000


def test_one_large_label_map_is_unpacked_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    observed = observed_with(*(hostile(f"b{number:02}", 100) for number in range(12)))
    pods = [a_pod(f"p{n}", labels=PackedLabels({"app": "", **{f"k{m}": "" for m in range(SLICE)}})) for n in range(3)]
    unpacked: list[PackedLabels] = []
    unpack = PackedLabels.unpacked

    def counted(labels: PackedLabels) -> dict[str, str]:
        unpacked.append(labels)
        return unpack(labels)

    monkeypatch.setattr(PackedLabels, "unpacked", counted)
    first, second, third = (observed.matcher.by_pod([pod]) for pod in pods)
    for search in (first, second, second, third):
        next(search)
    assert unpacked == []
    first.close()  # as when its walk is cancelled
    assert list(run_at_once(second)) == ["uid-p1"]
    assert list(run_at_once(third)) == ["uid-p2"]
    assert [id(labels) for labels in unpacked] == [id(pods[1].labels), id(pods[2].labels)]


LABELS = st.dictionaries(st.sampled_from("abc"), st.sampled_from("xy"), max_size=3)
SELECTORS = st.none() | st.builds(
    LabelSelector,
    st.dictionaries(st.sampled_from("abc"), st.sampled_from("xy"), max_size=2),
    st.lists(
        st.builds(Requirement, st.sampled_from("abc"), st.sampled_from(["Exists", "DoesNotExist"]))
        | st.builds(
            Requirement, st.sampled_from("abc"), st.sampled_from(["In", "NotIn"]), st.sampled_from([("x",), ("x", "y")])
        ),
        max_size=2,
    ).map(tuple),
)
CHANGES = st.lists(st.tuples(st.sampled_from(["one", "two", "three", "four"]), SELECTORS | st.just("gone")), max_size=9)


@given(CHANGES, st.lists(LABELS, min_size=1, max_size=4))
def test_after_any_changes_the_answer_is_that_of_the_selectors(
    changes: list[tuple[str, LabelSelector | str | None]], maps: list[dict[str, str]]
) -> None:
    observed = empty_cluster_cache()
    pods = [a_pod(f"p{number}", labels=labels) for number, labels in enumerate(maps)]
    for version, (name, selector) in enumerate(changes):
        if isinstance(selector, str):
            observed.budgets.remove(("shop", name))
        else:
            observed.budgets.put(a_budget(name, resource_version=str(version), selector=selector))
        budgets = sorted(observed.budgets.values(), key=lambda budget: budget.name)
        expected = {pod.name: [b.name for b in budgets if selects(b.selector, pod.labels)][:2] for pod in pods}
        assert names_by_pod(observed, *pods) == {name: found for name, found in expected.items() if found}
