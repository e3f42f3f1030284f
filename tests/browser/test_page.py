"""The page of `gracectl ui` in a real browser, on boards that the tests make."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from playwright.sync_api import Locator, Page, expect
from support.boards import (
    BOARD_NOW,
    Json,
    ServedBoard,
    a_budget,
    a_cause,
    a_deadline,
    a_node,
    a_node_drain,
    a_pod,
    a_warning,
    a_window,
    applied,
    at,
    blocked,
    never_under,
    of_nodes,
    protected,
    queued,
    terminated,
)

from gracectl.cli.format import elapsed_answer
from gracectl.cli.report import answer_report
from gracectl.cli.ui.board import merged
from gracectl.policy.answers import Never, Unknown, Window

pytestmark = pytest.mark.thorough

Open = Callable[..., Page]
Serve = Callable[..., ServedBoard]

VIEWS = ("Timeline", "Budgets", "History", "Events")


def row(page: Page, node: str) -> Locator:
    """The row of a node."""
    return page.get_by_role("row").filter(has=page.get_by_role("rowheader", name=node, exact=True))


def a_drain() -> list[Json]:
    """Three nodes: one that goes on, one that is held by a budget and by protection, one without pods."""
    pods = [blocked("web-1", "shop/web", 1, 2), blocked("web-2", "shop/web", 2, 2), protected("train-0", 10800.0)]
    return [
        a_node("worker-1", pods=[a_pod("api-1", "terminating", until=at(20.0))]),
        a_node("worker-2", pods=pods, drained=a_window(10800.0, None)),
        a_node("worker-3", step="volumes", waitsFor="2 volumes to be detached"),
    ]


def test_a_row_opens_its_pods_with_reason_remedy_and_command(open_page: Open, serve: Serve) -> None:
    page = open_page(serve(of_nodes(a_drain())).url)
    expect(row(page, "worker-3")).to_contain_text("volumes")

    row(page, "worker-2").click()

    detail = page.get_by_role("complementary")
    expect(detail.get_by_role("heading", name="worker-2")).to_be_visible()
    expect(detail).to_contain_text("2 pods: blocked by a budget")
    expect(detail).to_contain_text("budget shop/web allows no disruption now (2 of 3 healthy, 2 required)")
    expect(detail).to_contain_text("1 of 2 in queue")
    expect(detail).to_contain_text("kubectl annotate pod -n shop train-0 karpenter.sh/do-not-disrupt-")
    expect(detail.get_by_role("button", name="Copy: gracectl budgets -n shop", exact=True)).to_be_visible()
    assert detail.locator(".pods .bar.blocked").count() == 2
    assert "node=worker-2" in page.url


EDGES = """() => {
  const box = (name) => document.querySelector(name).getBoundingClientRect();
  const row = "#row-uid-worker-2 .bar";
  return [box(`${row}.blocked`).right, box(`${row}.forecast`).left, box(".lines .now-line").left + 1];
}"""
"""Where the past ends, where the forecast begins, and where now is, in pixels."""


def test_bars_are_solid_before_now_and_hatched_after_it(open_page: Open, serve: Serve) -> None:
    page = open_page(serve(of_nodes(a_drain())).url)
    expect(row(page, "worker-2").locator(".bar.blocked")).to_be_visible()

    # In one look: time goes on.
    past, forecast, now = page.evaluate(EDGES)

    assert past == pytest.approx(now, abs=2)
    assert forecast == pytest.approx(now, abs=2)


def test_with_many_pods_the_open_node_brings_its_own(open_page: Open, serve: Serve) -> None:
    nodes = a_drain()
    bare = [node | {"pods": None} for node in nodes]
    board = of_nodes(nodes) | {"withPods": False, "nodesWithPods": nodes}
    board["status"] |= {"nodes": bare}
    served = serve(board)
    page = open_page(served.url)
    expect(row(page, "worker-2").locator(".bar.blocked")).to_be_visible()

    row(page, "worker-2").click()

    detail = page.get_by_role("complementary")
    expect(detail).to_contain_text("2 pods: blocked by a budget")
    assert detail.locator(".pods .bar.blocked").count() == 2
    nodes[1]["pods"] = nodes[1]["pods"][1:]
    served.push(board | {"nodesWithPods": nodes})
    expect(detail).to_contain_text("1 pod: blocked by a budget")
    page.get_by_role("searchbox").fill("web-1")
    expect(page.locator(".empty")).to_contain_text("the search finds nodes only")


def test_news_arrive_and_a_terminated_node_goes_into_the_history(open_page: Open, serve: Serve) -> None:
    board = serve(of_nodes(a_drain()))
    page = open_page(board.url)
    expect(row(page, "worker-3")).to_contain_text("volumes")

    gone = terminated("worker-3", -60.0, cordon=2.0, drain=40.0, volumes=12.0, instance=5.0, finalizer=0.5)
    board.push(of_nodes(a_drain()[:2], history=[gone]))

    expect(row(page, "worker-3")).to_contain_text("terminated")
    expect(page.locator("dl.tiles")).to_contain_text("1 of 3")
    page.get_by_role("tab", name="History").click()
    line = page.locator("#history").get_by_role("row").filter(has_text="worker-3")
    expect(line).to_contain_text("0:59")
    expect(line).to_contain_text("0:12")


def test_a_claim_without_a_node_has_a_row_of_its_own(open_page: Open, serve: Serve) -> None:
    claim: Json = {"name": "spot-1", "nodes": [], "since": at(-30), "sinceSeconds": 30.0, "trace": None}
    page = open_page(
        serve(of_nodes(a_drain(), status={"claims": [claim | {"deadline": None, "waitsFor": "its instance"}]})).url
    )
    expect(row(page, "NodeClaim spot-1")).to_contain_text("its instance")
    expect(page.locator(".tile").filter(has_text="terminating").locator(".value")).to_have_text("3")
    row(page, "NodeClaim spot-1").click()
    expect(page.get_by_role("complementary")).to_contain_text("its instance")


def a_stuck_drain() -> Json:
    """A budget that never allows, a deadline that will be missed, and one that may be."""
    db = blocked("db-0", "shop/db", 1, 1)
    never = a_warning(
        "NeverDrains", "this node never drains", blocking=True, remedy="widen it: kubectl edit pdb -n shop db"
    )
    nodes = [
        *(a_node(f"worker-{number}", pods=[a_pod(f"api-{number}")]) for number in range(1, 6)),
        a_node("stuck", pods=[db], drained=never_under("shop/db", "shop/db-0"), never=True, warnings=[never]),
        a_node("late", pods=[a_pod("slow-0", "terminating")], drained=a_window(90.0, 120.0), deadline=a_deadline(60.0)),
        a_node("perhaps", pods=[a_pod("slow-1")], drained=a_window(30.0, 120.0), deadline=a_deadline(60.0)),
    ]
    budget = a_budget("shop/db", healthy=3, required=3, queue=[queued(db, "stuck")])
    cause = a_cause(
        "budget shop/db: 1 pod on 1 node, never", never=True, remedy="widen it: kubectl edit pdb -n shop db"
    )
    return of_nodes(nodes, podBudgets=[budget, a_budget("shop/api", healthy=3)], causes=[cause])


def test_a_stuck_drain_catches_the_eye_the_worst_first(open_page: Open, serve: Serve) -> None:
    page = open_page(serve(a_stuck_drain()).url)
    items = page.get_by_role("list", name="Attention").get_by_role("listitem")

    expect(items).to_have_count(3)
    expect(items.nth(0)).to_contain_text("Deadline will be missed by 1 node late in ")
    expect(items.nth(1)).to_contain_text("Budget never allows stuck: budget shop/db allows no disruption now")
    expect(items.nth(1)).to_contain_text("kubectl edit pdb -n shop db")
    expect(items.nth(2)).to_contain_text("Deadline may be missed by 1 node perhaps in ")
    names = page.get_by_role("rowheader").all_inner_texts()
    assert set(names[:2]) == {"stuck", "late"}
    expect(row(page, "stuck")).to_contain_text("never")

    items.nth(0).get_by_role("button").click()
    expect(page.get_by_role("complementary").get_by_role("heading", name="late")).to_be_visible()
    items.nth(1).get_by_role("button", name="Budget never allows").click()
    card = page.locator("#budgets").get_by_role("listitem").filter(has_text="shop/db")
    expect(card.first).to_contain_text("never allows")
    card.first.get_by_role("button", name="stuck").first.click()
    expect(page.get_by_role("complementary").get_by_role("heading", name="stuck")).to_be_visible()


def an_alarming_drain() -> Json:
    """Thirty nodes, and seven alarms and warnings with long names."""
    nodes, budgets, causes = [], [], []
    for number in range(5):
        budget, name = f"team-{number}/postgres-primary", f"ip-10-0-{number}-17.eu-west-1.compute.internal"
        pod = blocked(f"db-{number}", budget, 1, 1)
        remedy = f"ask payments (label team), or widen it: kubectl edit pdb -n team-{number} postgres-primary"
        warning = a_warning("NeverDrains", "this node never drains", blocking=True, remedy=remedy)
        answer = never_under(budget, f"shop/db-{number}")
        nodes.append(a_node(name, pods=[pod], drained=answer, never=True, warnings=[warning]))
        budgets.append(a_budget(budget, healthy=3, required=3, queue=[queued(pod, name)]))
        causes.append(a_cause(f"budget {budget}: db-{number} on {name}, never", never=True, remedy=remedy))
    late = [
        a_node(f"late-{number}", pods=[a_pod(f"api-{number}")], deadline=a_deadline(-20.0 if number else 60.0))
        for number in range(25)
    ]
    return of_nodes([*nodes, *late], podBudgets=budgets, causes=causes)


HEIGHTS = """() => {
  const box = (name) => document.querySelector(name).getBoundingClientRect();
  return {attention: box("#attention").height, top: box("#attention").top, list: innerHeight - box(".grid").top};
}"""


@pytest.mark.parametrize(("width", "height", "most", "least"), [(400, 800, 48, 320), (1280, 900, 270, 450)])
def test_alarms_leave_the_list_its_room(
    open_page: Open, serve: Serve, width: int, height: int, most: int, least: int
) -> None:
    page = open_page(serve(an_alarming_drain()).url, width=width, height=height)
    attention = page.get_by_role("list", name="Attention")
    expect(attention).to_contain_text("more")

    heights = page.evaluate(HEIGHTS)
    assert heights["attention"] <= most
    assert heights["list"] >= least

    page.mouse.wheel(0, 2000)
    page.wait_for_function("scrollY > 300")
    expect(attention).to_be_in_viewport()
    assert page.evaluate(HEIGHTS)["attention"] <= most


def test_a_telephone_shows_details_and_commands_on_request(open_page: Open, serve: Serve) -> None:
    page = open_page(serve(an_alarming_drain()).url, width=400, height=800)
    attention = page.get_by_role("list", name="Attention")
    command = attention.get_by_text("kubectl edit pdb -n team-0 postgres-primary")
    expect(attention.get_by_role("listitem")).to_have_count(2)
    expect(command).to_be_hidden()

    attention.get_by_role("button", name="6 more").click()

    expect(command).to_be_visible()
    assert page.evaluate(HEIGHTS)["attention"] <= 480
    attention.get_by_role("button", name="show fewer").click()
    expect(command).to_be_hidden()


def test_each_command_of_a_remedy_is_copied_by_itself(open_page: Open, serve: Serve) -> None:
    patch, annotate = "kubectl patch pdb -n shop db -p '{}'", "kubectl annotate node stuck karpenter.sh/x=$(date -u)"
    remedy = f"run more pods, or widen it: {patch}; or give the node a deadline: {annotate}"
    warning = a_warning("NeverDrains", "this node never drains", blocking=True, remedy=remedy)
    answer = never_under("shop/db", "shop/db-0")
    page = open_page(serve(of_nodes([a_node("stuck", pods=[a_pod("db-0")], drained=answer, warnings=[warning])])).url)
    attention = page.get_by_role("list", name="Attention")
    expect(attention.get_by_role("button", name=f"Copy: {patch}", exact=True)).to_be_visible()
    expect(attention.get_by_role("button", name=f"Copy: {annotate}", exact=True)).to_be_visible()


def test_node_drains_have_a_row_each_until_an_hour_after_their_end(open_page: Open, serve: Serve) -> None:
    drains = [
        a_node_drain("rotate-x7k2p"),
        a_node_drain(
            "drain-a1b2c", "blocked", message="worker-2: shop/web-1: budget shop/web never allows a disruption"
        ),
        a_node_drain("done-lately", "complete", 40, completionTime=at(-600.0)),
        a_node_drain("done-before", "complete", 40, completionTime=at(-7200.0)),
    ]
    page = open_page(serve(of_nodes(a_drain(), nodeDrains=drains)).url)
    rows = page.get_by_role("list", name="NodeDrains").get_by_role("listitem")
    expect(rows).to_have_count(3)
    expect(rows.nth(0)).to_contain_text("12 of 40 nodes")
    expect(rows.nth(0)).to_contain_text("4 in progress, 24 pending; ends about ")
    expect(rows.nth(0).get_by_role("progressbar")).to_have_attribute("aria-valuenow", "12")
    expect(rows.nth(1).locator(".badge.alarm")).to_have_text("blocked")
    expect(rows.nth(1)).to_contain_text("budget shop/web never allows a disruption")
    expect(page.get_by_text("done-before")).to_have_count(0)


def test_without_node_drains_there_is_no_list_of_them(open_page: Open, serve: Serve) -> None:
    page = open_page(serve(of_nodes(a_drain())).url)
    expect(row(page, "worker-1")).to_be_visible()
    expect(page.locator(".campaigns")).to_be_hidden()


def test_of_many_causes_the_first_are_shown(open_page: Open, serve: Serve) -> None:
    page = open_page(serve(an_alarming_drain()).url)
    causes = page.locator(".held .cause")
    expect(causes).to_have_count(3)
    page.get_by_role("button", name="and 2 more").click()
    expect(causes).to_have_count(5)
    page.get_by_role("button", name="show fewer").click()
    expect(causes).to_have_count(3)


def test_a_forecast_that_is_unknown_for_a_moment_needs_no_attention_yet(open_page: Open, serve: Serve) -> None:
    def of(*names: str, since: float) -> Json:
        pods = [blocked(name, "shop/web", 1, 1, since=since) for name in names]
        node = a_node("worker-1", since=since, pods=pods, drained=a_window(5.0, None))
        cause = a_cause("budget shop/web: unknown when it recovers", pods=len(pods))
        cause |= {"ageSeconds": -since, "left": a_window(5.0, None)}
        queue = [queued(pod, "worker-1") for pod in pods]
        return of_nodes([node], podBudgets=[a_budget("shop/web", queue=queue)], causes=[cause])

    board = serve(of("web-1", "web-2", since=-5.0))
    page = open_page(board.url)
    expect(row(page, "worker-1")).to_contain_text("unknown")
    attention = page.get_by_role("list", name="Attention")
    expect(attention).to_contain_text("Nothing needs attention.")
    remaining = page.locator(".tile.main")
    expect(remaining).to_contain_text("unknown")
    expect(remaining).to_contain_text("for 1 node")

    board.push(of("web-1", since=-300.0))
    expect(attention).to_contain_text("Budget blocks until its pods are Ready")


def test_what_needs_attention_what_remains_and_the_rows_say_the_same(open_page: Open, serve: Serve) -> None:
    """Never is the forecast's alone: no state of a budget makes it on the page, and none hides it."""
    pod = blocked("web-1", "shop/web", 1, 1, since=-5.0)
    budget = a_budget("shop/web", healthy=3, required=3, queue=[queued(pod, "worker-1")])
    cause = a_cause("budget shop/web: 1 pod on 1 node, about 0:10-1:00 left", never=False)
    other = a_node("worker-2", pods=[a_pod("api-1")], drained=a_window(20.0, 90.0))

    def of(answer: Json, cause: Json) -> Json:
        is_never = answer["answer"] == "never"
        return of_nodes(
            [a_node("worker-1", pods=[pod], drained=answer, never=is_never), other], podBudgets=[budget], causes=[cause]
        )

    board = serve(of(a_window(10.0, 60.0), cause))
    page = open_page(board.url)
    attention, remaining = page.get_by_role("list", name="Attention"), page.locator(".tile.main")
    expect(attention).to_contain_text("Nothing needs attention.")
    expect(remaining).not_to_contain_text("never")
    expect(page.locator(".held .never")).to_have_count(0)

    stuck = a_cause("budget shop/web: 1 pod on 1 node, never", never=True)
    board.push(of(never_under("shop/web", "shop/web-1"), stuck))

    expect(attention).to_contain_text("Budget never allows worker-1: budget shop/web allows no disruption now")
    expect(remaining.locator(".value")).to_have_text("never")
    expect(remaining).to_contain_text("for 1 node")
    expect(remaining).to_contain_text("for the others")
    expect(page.locator(".held .never")).to_have_count(1)
    expect(row(page, "worker-1")).to_contain_text("never")


def test_an_old_forecast_shows_its_age(open_page: Open, serve: Serve) -> None:
    state = of_nodes(a_drain())
    state["status"]["progress"] |= {"forecastAt": at(-12.0), "forecastAgeSeconds": 12.0}
    board = serve(state)
    page = open_page(board.url)
    expect(page.locator(".tile.main")).to_contain_text("forecast 0:1")
    fresh = of_nodes(a_drain())
    fresh["status"]["progress"] |= {"forecastAt": at(60.0), "forecastAgeSeconds": 0.0}
    board.push(fresh)
    expect(page.locator(".tile.main")).not_to_contain_text("old")


ANSWERS = (
    Window(BOARD_NOW + 5, BOARD_NOW + 272),
    Window(BOARD_NOW + 5, BOARD_NOW + 272, BOARD_NOW + 90),
    Window(BOARD_NOW + 30, BOARD_NOW + 30.5),
    Window(BOARD_NOW - 30, BOARD_NOW + 3700),
    Window(BOARD_NOW - 30, BOARD_NOW - 20),
    Unknown(("when it ends",), BOARD_NOW + 5),
    Never(()),
)


def test_the_page_words_an_answer_as_the_terminal_does(open_page: Open, serve: Serve) -> None:
    page = open_page(serve(of_nodes(a_drain())).url)
    reports = [msgspec.to_builtins(answer_report(answer, BOARD_NOW)) for answer in ANSWERS]
    script = """async ([answers, now]) => {
      const { answerText } = await import("./assets/format.js");
      return answers.map((each) => answerText(each, now));
    }"""
    words = page.evaluate(script, [reports, BOARD_NOW * 1000])
    assert [text.replace("–", "-") for text in words] == [elapsed_answer(answer, BOARD_NOW) for answer in ANSWERS]


def test_an_api_server_that_is_away_is_said_and_time_stands_still(open_page: Open, serve: Serve) -> None:
    board = serve(of_nodes(a_drain()))
    page = open_page(board.url)
    attention = page.get_by_role("list", name="Attention")
    expect(attention).to_contain_text("Nothing needs attention.")

    board.push(of_nodes(a_drain(), connection={"state": "lost", "since": at(0), "error": "connection refused"}))

    expect(attention).to_contain_text("API server away")
    expect(attention).to_contain_text("connection refused")
    expect(page.locator(".axis")).to_contain_text("last seen")
    page.get_by_role("rowheader", name="worker-2").click()
    expect(page.get_by_role("complementary")).to_contain_text("1:00, since")

    board.push(of_nodes(a_drain()))
    expect(attention).to_contain_text("Nothing needs attention.")


def test_the_page_resumes_after_a_restart_of_the_server(open_page: Open, serve: Serve) -> None:
    board = serve(of_nodes(a_drain()))
    page = open_page(board.url)
    expect(row(page, "worker-3")).to_be_visible()

    board.stop()
    expect(page.get_by_role("list", name="Attention")).to_contain_text("gracectl ui does not answer")
    expect(page.get_by_role("status")).to_contain_text("reconnecting")
    board.push(of_nodes([a_node("worker-9"), *a_drain()[:2]]))
    board.start()

    expect(row(page, "worker-9")).to_be_visible()
    expect(row(page, "worker-3")).to_have_count(0)
    expect(page.get_by_role("status")).to_contain_text("live")
    board.push(of_nodes([a_node("worker-10")]))
    expect(row(page, "worker-10")).to_be_visible()


def test_five_hundred_nodes_are_as_many_elements_as_fit_the_screen(open_page: Open, serve: Serve) -> None:
    nodes = [
        a_node(f"node-{number}", pods=[blocked(f"web-{number}-{pod}", "shop/web", pod + 1, 8) for pod in range(8)])
        for number in range(1, 501)
    ]
    board = serve(of_nodes(nodes))
    page = open_page(f"{board.url}?sort=name")
    expect(row(page, "node-1")).to_be_visible()
    expect(page.get_by_role("grid")).to_have_attribute("aria-rowcount", "501")
    assert page.get_by_role("row").count() < 60

    page.get_by_role("grid").focus()
    page.keyboard.press("End")
    expect(row(page, "node-500")).to_be_in_viewport()
    assert page.get_by_role("row").count() < 60
    expect(row(page, "node-500")).to_contain_text("8")
    last = nodes[-1] | {"pods": nodes[-1]["pods"][:7], "podsLeft": 7}
    board.push(of_nodes([*nodes[:-1], last]))
    expect(row(page, "node-500").locator(".pods")).to_have_text("7")

    page.get_by_role("searchbox").fill("web-250-7")
    expect(page.get_by_role("rowheader")).to_have_text(["node-250"])


HOSTILE = (
    "<img src=x onerror=alert(1)>",
    "<script>alert(2)</script>",
    "\"><svg onload=alert(3)>'",
    "{{constructor.constructor('alert(4)')()}}",
    "a&lt;b&#x3c;/b",
)


def test_hostile_text_is_shown_as_it_is(open_page: Open, serve: Serve) -> None:
    nodes, budgets, history, events = [], [], [], []
    for number, text in enumerate(HOSTILE):
        pod = blocked(f"pod-{number}", "shop/web", 1, 1)
        pod |= {"name": text, "namespace": text, "reason": text, "remedy": f"ask {text}: kubectl {text}"}
        trace = {"id": text, "url": f"javascript:alert('{number}')"}
        warning = a_warning(text, text, blocking=True, remedy=text)
        nodes.append(a_node(text, pods=[pod], waitsFor=text, warnings=[warning], trace=trace))
        budgets.append(
            a_budget(f"{number}/x", problem=text, queue=[queued(pod, text)]) | {"name": text, "namespace": text}
        )
        history.append(terminated(f"old {text}", -100.0, drain=5.0) | {"trace": trace})
        event = {"uid": text, "at": at(0), "type": text, "reason": text, "message": text, "count": 1}
        events.append(event | {"object": {"kind": text, "namespace": text, "name": text, "uid": text}})
    causes = [a_cause(text, never=True, remedy=text) for text in HOSTILE]
    cluster = {"cluster": {"context": HOSTILE[0], "server": HOSTILE[1]}}
    drains = [a_node_drain(text, message=text, reason=text, requestedBy=text) for text in HOSTILE]
    more: dict[str, Any] = {"podBudgets": budgets, "history": history, "events": events, "causes": causes}
    more["nodeDrains"] = drains
    links = {"grafana": "javascript:alert('grafana')"}
    page = open_page(serve(of_nodes(nodes, status=cluster, links=links, **more)).url)
    expect(page.get_by_role("banner").or_(page.locator("#cluster")).first).to_contain_text(HOSTILE[0])

    for text in HOSTILE:
        row(page, text).click()
        detail = page.get_by_role("complementary")
        expect(detail.get_by_role("heading", level=2)).to_have_text(text)
        expect(detail.locator(".pods .name")).to_have_text(f"{text}/{text}")
        expect(detail.get_by_role("link")).to_have_count(0)
    for view in VIEWS[1:]:
        page.get_by_role("tab", name=view).click()
        panel = page.get_by_role("tabpanel", name=view)
        for text in HOSTILE:
            expect(panel.get_by_text(text).first).to_be_visible()
    foreign = page.evaluate("document.querySelectorAll('img, svg, script:not([src]), [onerror], [onload]').length")
    assert foreign == 0


def test_all_of_it_by_keyboard(open_page: Open, serve: Serve) -> None:
    page = open_page(serve(of_nodes(a_drain(), history=[terminated("gone", -90.0, drain=20.0)])).url)
    expect(row(page, "worker-1")).to_be_visible()
    keys = page.keyboard

    page.get_by_role("grid").focus()
    keys.press("ArrowDown")
    keys.press("j")
    active = page.get_by_role("grid").get_attribute("aria-activedescendant")
    assert active == "row-uid-worker-3"
    keys.press("k")
    keys.press("Enter")
    heading = page.get_by_role("complementary").get_by_role("heading", level=2)
    expect(heading).to_have_text("worker-2")
    keys.press("Escape")
    expect(page.get_by_role("complementary")).to_be_hidden()

    keys.press("/")
    keys.type("train-0")
    expect(page.get_by_role("rowheader")).to_have_text(["worker-2"])
    assert "q=train-0" in page.url
    keys.press("Escape")
    keys.press("Escape")
    expect(page.get_by_role("rowheader")).to_have_count(4)

    fit = page.get_by_role("button", name="fit")
    expect(fit).to_have_attribute("aria-pressed", "true")
    keys.press("+")
    keys.press("ArrowLeft")
    expect(fit).to_have_attribute("aria-pressed", "false")
    keys.press("0")
    expect(fit).to_have_attribute("aria-pressed", "true")

    keys.press("3")
    expect(page.get_by_role("tab", name="History")).to_have_attribute("aria-selected", "true")
    page.get_by_role("tab", name="History").focus()
    keys.press("ArrowLeft")
    expect(page.get_by_role("tab", name="Budgets")).to_be_focused()
    keys.press("?")
    expect(page.get_by_role("dialog")).to_be_visible()
    keys.press("Escape")
    expect(page.get_by_role("dialog")).to_be_hidden()


def test_each_control_has_a_name_and_the_focus_reaches_it(open_page: Open, serve: Serve) -> None:
    page = open_page(serve(a_stuck_drain()).url)
    expect(row(page, "stuck")).to_be_visible()
    row(page, "stuck").click()
    nameless = page.evaluate(
        """[...document.querySelectorAll("button, input, select, a")].filter(each => each.checkVisibility())
        .filter(each => !(each.textContent.trim() || each.ariaLabel || each.labels?.length))
        .map(each => each.outerHTML)"""
    )
    assert nameless == []
    page.evaluate("document.activeElement.blur(); scrollTo(0, 0)")
    reached = []
    for _ in range(60):
        page.keyboard.press("Tab")
        reached.append(page.evaluate("document.activeElement.id || document.activeElement.textContent.trim()"))
        if "grid" in reached:
            break
    assert {"search", "theme", "tab-timeline", "fit", "grid"} <= set(reached)


CONTRAST = """() => {
  const canvas = document.createElement("canvas").getContext("2d", {willReadFrequently: true});
  const pixel = (color, under) => {
    canvas.fillStyle = under; canvas.fillRect(0, 0, 1, 1); canvas.fillStyle = color; canvas.fillRect(0, 0, 1, 1);
    return [...canvas.getImageData(0, 0, 1, 1).data].slice(0, 3);
  };
  const light = (rgb) => rgb.map(c => c / 255).map(c => c <= .04045 ? c / 12.92 : ((c + .055) / 1.055) ** 2.4)
    .reduce((sum, c, i) => sum + c * [.2126, .7152, .0722][i], 0);
  const ground = (element) => {
    const chain = [];
    for (let each = element; each; each = each.parentElement) chain.unshift(getComputedStyle(each).backgroundColor);
    return chain.reduce((under, color) => `rgb(${pixel(color, under)})`, "#fff");
  };
  const found = [];
  for (const element of document.querySelectorAll("body *")) {
    const own = [...element.childNodes].some(node => node.nodeType === 3 && node.data.trim());
    // Labels on patterns have a plate of their own behind them.
    if (!own || !element.checkVisibility() || element.closest(".bar, .said, .skip, option")) continue;
    const style = getComputedStyle(element), under = ground(element);
    const [a, b] = [light(pixel(style.color, under)), light(pixel(under, under))];
    const ratio = (Math.max(a, b) + .05) / (Math.min(a, b) + .05);
    const large = parseFloat(style.fontSize) >= 24 || (parseFloat(style.fontSize) >= 18.6 && style.fontWeight >= 700);
    const what = `${element.className} ${element.textContent.slice(0, 30)}`;
    if (ratio < (large ? 3 : 4.5)) found.push(`${what}: ${ratio.toFixed(2)}`);
  }
  return found;
}"""


@pytest.mark.parametrize("scheme", ["dark", "light"])
def test_contrast_is_sufficient_in_dark_and_in_light(open_page: Open, serve: Serve, scheme: str) -> None:
    page = open_page(serve(a_stuck_drain()).url, color_scheme=scheme)
    row(page, "stuck").click()
    expect(page.get_by_role("complementary").get_by_role("heading", name="stuck")).to_be_visible()
    assert page.evaluate(CONTRAST) == []
    page.get_by_role("tab", name="Budgets").click()
    expect(page.get_by_role("heading", name="shop/db")).to_be_visible()
    assert page.evaluate(CONTRAST) == []


def test_the_theme_follows_the_system_until_one_is_chosen(open_page: Open, serve: Serve) -> None:
    page = open_page(serve(of_nodes(a_drain())).url, color_scheme="dark")
    ground = "getComputedStyle(document.body).backgroundColor"
    dark = page.evaluate(ground)
    page.emulate_media(color_scheme="light")
    light = page.evaluate(ground)
    assert dark != light

    page.get_by_role("button", name="Theme: automatic").click()
    assert page.evaluate(ground) == dark
    page.reload()
    expect(page.get_by_role("button", name="Theme: dark")).to_be_visible()
    assert page.evaluate(ground) == dark


def test_a_telephone_shows_all_without_scrolling_sideways(open_page: Open, serve: Serve) -> None:
    page = open_page(serve(a_stuck_drain()).url, width=400, height=800)
    expect(row(page, "stuck")).to_be_visible()
    for view in VIEWS:
        page.get_by_role("tab", name=view).click()
        assert page.evaluate("document.scrollingElement.scrollWidth") <= 400
    page.get_by_role("tab", name="Timeline").click()
    row(page, "stuck").click()
    detail = page.get_by_role("complementary")
    expect(detail).to_be_in_viewport(ratio=1)
    assert page.evaluate("document.querySelector('#detail').scrollWidth") <= 400
    detail.get_by_role("button", name="Close").click()
    expect(detail).to_be_hidden()


def test_the_address_holds_what_is_shown(open_page: Open, serve: Serve) -> None:
    page = open_page(f"{serve(a_stuck_drain()).url}?q=worker&sort=name&show=terminating&node=worker-2")
    expect(page.get_by_role("rowheader")).to_have_count(5)
    expect(page.get_by_role("complementary").get_by_role("heading", name="worker-2")).to_be_visible()
    expect(page.get_by_role("searchbox")).to_have_value("worker")

    page.get_by_role("tab", name="Budgets").click()
    expect(page).to_have_url(re.compile(r"view=budgets"))
    page.go_back()
    expect(page.get_by_role("rowheader")).to_have_count(5)
    page.get_by_role("button", name=re.compile("needs attention")).click()
    expect(page).to_have_url(re.compile(r"show=attention"))


def test_a_print_has_all_rows(open_page: Open, serve: Serve) -> None:
    page = open_page(serve(of_nodes([a_node(f"node-{number}") for number in range(120)])).url)
    expect(row(page, "node-0")).to_be_visible()
    page.evaluate("dispatchEvent(new Event('beforeprint'))")
    expect(page.get_by_role("rowheader")).to_have_count(120)
    page.emulate_media(media="print")
    expect(page.get_by_role("searchbox")).to_be_hidden()


def test_a_token_is_asked_for_and_leaves_the_address(open_page: Open, serve: Serve, tmp_path: Path) -> None:
    token = "0123456789abcdef-token"
    (tmp_path / "token").write_text(token)
    board = serve(of_nodes(a_drain()), token=tmp_path / "token")

    page = open_page(board.url)
    expect(page.get_by_role("list", name="Attention")).to_contain_text("This page needs the server's token")
    page.get_by_label("Token").fill(token)
    page.get_by_role("button", name="Enter").click()
    expect(row(page, "worker-1")).to_be_visible()

    other = open_page(f"{board.url}#token={token}")
    expect(row(other, "worker-1")).to_be_visible()
    assert token not in other.url


def test_the_page_applies_changes_as_the_server_means_them(open_page: Open, serve: Serve) -> None:
    states = [
        of_nodes([]),
        of_nodes(a_drain(), podBudgets=[a_budget("shop/web"), a_budget("shop/api")]),
        a_stuck_drain(),
        a_stuck_drain()
        | {"podBudgets": [a_budget("shop/api"), a_budget("shop/db")], "nodeBudgets": None, "events": None},
        of_nodes(a_drain()[::-1], history=[terminated("gone", -90.0, drain=20.0)]),
        of_nodes(a_drain()[1:], connection={"state": "lost", "since": at(0), "error": "refused"}),
    ]
    page = open_page(serve(states[0]).url)
    state: Any = states[0]
    for new in states[1:]:
        after, delta = merged(state, new)
        shown = page.evaluate(
            "async ([old, delta]) => (await import('./assets/delta.js')).applied(old, delta)", [state, delta]
        )
        assert shown == after == applied(state, delta)
        state = after
