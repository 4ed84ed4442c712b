"""The dashboard as a person uses it: sign in, press Deploy, watch it start, chat with it. In a real headless Chromium."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator

import httpx
import pytest
from playwright.sync_api import Browser, Page, expect, sync_playwright

from tests.e2e.conftest import Platform

pytestmark = [pytest.mark.e2e, pytest.mark.browser, pytest.mark.timeout(300)]

FLAGS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]

PATIENT = 60_000  # milliseconds, on a busy machine
expect.set_options(timeout=30_000)


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    chromium = shutil.which("chromium")
    assert chromium, (
        "These tests need Debian's Chromium; `make test` installs it as root and otherwise leaves them out."
    )
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=FLAGS)
        yield browser
        browser.close()


@pytest.fixture
def page(browser: Browser, platform_up: Platform) -> Iterator[Page]:
    """A fresh profile. Whatever the page does, no script error, no refused policy and no foreign address may occur."""
    context = browser.new_context(base_url=platform_up.demo["dashboard_url"], locale="en-GB")
    page = context.new_page()
    problems: list[str] = []
    allowed = tuple(platform_up.demo[name].removesuffix("/v1") for name in ("dashboard_url", "api_base"))
    page.on("pageerror", lambda error: problems.append(str(error)))
    page.on("console", lambda m: problems.append(m.text) if "Content Security Policy" in m.text else None)
    page.on("request", lambda r: problems.append(r.url) if not r.url.startswith((*allowed, "data:", "blob:")) else None)
    yield page
    context.close()
    assert problems == []


def sign_in(page: Page, platform: Platform) -> None:
    page.goto("/")
    page.get_by_label("E-mail").fill(platform.demo["email"])
    page.get_by_label("Password").fill(platform.demo["password"])
    page.get_by_role("button", name="Sign in").click()
    expect(page.get_by_role("heading", level=1)).to_have_text("Overview")


def test_deploy_by_clicking_and_chat_with_it(page: Page, platform_up: Platform) -> None:
    sign_in(page, platform_up)
    page.get_by_role("navigation", name="Main").get_by_role("link", name="Deploy", exact=True).click()
    page.get_by_label("Deployment name").fill("by-hand")
    page.get_by_label("Context length").select_option("2048")
    expect(page.get_by_text("Fits", exact=True)).to_be_visible()
    page.get_by_role("button", name=re.compile("^Deploy")).click()
    expect(page.get_by_role("heading", level=1)).to_contain_text("by-hand")
    # The live timeline reaches the first token by itself, without a reload.
    expect(page.get_by_role("listitem").filter(has_text="First token")).to_be_visible()
    expect(page.get_by_role("main").get_by_role("status").first).to_contain_text("Ready", timeout=60_000)
    page.get_by_role("navigation", name="Deployment").get_by_role("link", name="Playground").click()
    page.get_by_label("Message").fill("What is a berth?")
    page.get_by_label("Message").press("Enter")
    # Token counts are the gateway's own, which come with the end of the stream.
    expect(page.get_by_text(re.compile(r"\d+ in · [1-9]\d* out"))).to_be_visible(timeout=90_000)
    expect(page.get_by_text(re.compile("^(stop|length)"))).to_be_visible()
    page.reload()
    expect(page.get_by_text("What is a berth?")).to_have_count(0)
    stored = page.evaluate("() => JSON.stringify(localStorage) + JSON.stringify(sessionStorage)")
    assert "bth_sk_" not in stored
    assert "berth?" not in stored
    # What was made by clicking is called by its full name with an ordinary key.
    headers = {"Authorization": f"Bearer {platform_up.demo['api_key']}"}
    body = {"model": "my-org/by-hand", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 3}
    platform_up.wait_for(
        lambda: (
            httpx.post(
                f"{platform_up.demo['api_base']}/chat/completions", json=body, headers=headers, timeout=60
            ).status_code
            == 200
        )
    )


def test_needs_of_a_deployment_are_changed_by_clicking(page: Page, platform_up: Platform) -> None:
    sign_in(page, platform_up)
    name = platform_up.demo["model"].split("/")[1]
    page.goto(f"/o/my-org/deployments/{name}/settings")
    page.get_by_role("link", name="Change needs").click()
    expect(page.get_by_role("heading", level=1)).to_have_text(f"Change needs of {name}")
    expect(page.get_by_label("Deployment name")).to_be_disabled()
    button = page.get_by_role("button", name="Change deployment")
    page.get_by_label("Requests at once").fill("0")
    expect(page.get_by_text("Correct the marked fields").filter(visible=True)).to_be_visible()
    expect(button).to_be_disabled()
    page.get_by_label("Requests at once").fill("2")
    expect(page.get_by_text("Fits", exact=True)).to_be_visible()
    button.click()
    expect(page.get_by_role("heading", level=1)).to_have_text(f"my-org/{name}")
    deployment = platform_up.sign_in().get(f"/api/v1/orgs/my-org/deployments/{name}").json()
    assert (deployment["revision"]["number"], deployment["revision"]["needs"]["concurrency"]) == (2, 2)
    platform_up.wait_for(lambda: everything_is_ready(platform_up), 90)


def everything_is_ready(platform: Platform) -> bool:
    items = platform.sign_in().get("/api/v1/orgs/my-org/deployments").json()["items"]
    return all(each["state"] == "ready" for each in items)


def test_a_canary_is_chosen_held_and_rolled_back_by_clicking(page: Page, platform_up: Platform) -> None:
    sign_in(page, platform_up)
    name = platform_up.demo["model"].split("/")[1]
    before = platform_up.sign_in().get(f"/api/v1/orgs/my-org/deployments/{name}").json()
    page.goto(f"/o/my-org/deploy?change={name}")
    page.get_by_label("Context length").select_option("1024")
    page.get_by_label("Strategy").select_option("canary")
    page.get_by_label("Steps, % of the requests").fill("50, 20")
    expect(page.get_by_text("each above the one before")).to_be_visible(timeout=PATIENT)
    page.get_by_label("Steps, % of the requests").fill("20, 50")
    page.get_by_label("Why").fill("shorter prompts")
    page.get_by_role("button", name="Change deployment").click()
    expect(page.get_by_role("heading", level=1)).to_have_text(f"my-org/{name}")
    expect(page.get_by_text("Canary: 20 % of the requests (step 1 of 2)")).to_be_visible(timeout=PATIENT)
    # What happens is streamed to this page: nothing is asked for now and then.
    expect(page.locator("[data-live=stream]")).to_be_visible(timeout=PATIENT)
    page.get_by_role("button", name="Hold").click()
    expect(page.get_by_text("on hold", exact=True)).to_be_visible(timeout=PATIENT)
    page.get_by_role("button", name="Go on").click()
    expect(page.get_by_text("under way", exact=True)).to_be_visible(timeout=PATIENT)
    page.get_by_role("button", name="Promote").click()
    expect(page.get_by_text("Canary: 50 % of the requests (step 2 of 2)")).to_be_visible(timeout=PATIENT)
    page.get_by_role("button", name="Roll back").click()
    expect(page.get_by_text("rolled back", exact=True)).to_be_visible(timeout=PATIENT)
    platform_up.wait_for(lambda: everything_is_ready(platform_up), 90)
    after = platform_up.sign_in().get(f"/api/v1/orgs/my-org/deployments/{name}").json()
    assert after["revision"]["number"] == before["stable"], "the last one that was good"
    assert after["rollout"]["reason"] == "by_hand"


def test_scaling_is_set_and_explained_and_without_the_stream_it_is_asked_for(page: Page, platform_up: Platform) -> None:
    sign_in(page, platform_up)
    name = platform_up.demo["model"].split("/")[1]
    api = platform_up.sign_in()
    url = f"/api/v1/orgs/my-org/deployments/{name}"
    page.goto(f"/o/my-org/deployments/{name}/settings")
    try:
        page.get_by_label("At least").fill("1")
        page.get_by_label("At most").fill("2")
        page.get_by_role("button", name="Save bounds").click()
        expect(page.get_by_text("Bounds saved")).to_be_visible(timeout=PATIENT)
        page.get_by_label("Take replicas away after, seconds").fill("5")
        expect(page.get_by_text("Use a number from 30 to 7,200.")).to_be_visible(timeout=PATIENT)
        expect(page.get_by_role("button", name="Save", exact=True)).to_be_disabled()
        page.get_by_label("Take replicas away after, seconds").fill("60")
        page.get_by_role("button", name="Save", exact=True).click()
        expect(page.get_by_text("Scaling saved")).to_be_visible(timeout=PATIENT)
        assert api.get(f"{url}/scaling").json()["stabilisation_seconds"] == 60
        page.get_by_role("button", name="Add a peak").click()
        page.get_by_label("From").fill(page.evaluate(LOCAL_TIME, -5))
        page.get_by_label("To", exact=True).fill(page.evaluate(LOCAL_TIME, 60))
        page.get_by_label("How many").fill("2")
        page.get_by_role("button", name="Save peaks").click()
        expect(page.get_by_text("Peaks saved")).to_be_visible(timeout=PATIENT)
        # The number and its reason appear by themselves.
        page.goto(f"/o/my-org/deployments/{name}")
        expect(page.get_by_text("A declared peak asks for 2.")).to_be_visible(timeout=PATIENT)
        expect(page.get_by_text("2 ready, 2 wanted now; between 1 and 2")).to_be_visible(timeout=120_000)
        expect(page.locator("[data-live=stream]")).to_be_visible(timeout=PATIENT)
        page.route("**/live", lambda route: route.abort())
        page.reload()
        expect(page.locator("[data-live=polling]")).to_be_visible(timeout=PATIENT)
        expect(page.get_by_text("A declared peak asks for 2.")).to_be_visible(timeout=PATIENT)
        expect(page.get_by_text("The live stream is away just now")).to_be_visible(timeout=PATIENT)
        page.unroute("**/live")
        expect(page.locator("[data-live=stream]")).to_be_visible(timeout=60_000)
    finally:
        api.put(f"{url}/scaling/peaks", json={"peaks": []}).raise_for_status()
        api.patch(f"{url}/scaling", json={"stabilisation_seconds": 400}).raise_for_status()
        api.patch(url, json={"min_replicas": None, "max_replicas": None}).raise_for_status()
    platform_up.wait_for(lambda: everything_is_ready(platform_up), 90)


# As an input of type datetime-local has it, in the browser's time zone: so many minutes from now.
LOCAL_TIME = """(minutes) => {
  const at = new Date(Date.now() + minutes * 60000);
  return new Date(at.getTime() - at.getTimezoneOffset() * 60000).toISOString().slice(0, 16);
}"""


def test_a_budget_is_set_changed_and_deleted(page: Page, platform_up: Platform) -> None:
    sign_in(page, platform_up)
    page.get_by_role("navigation", name="Main").get_by_role("link", name="Budgets").click()
    page.get_by_role("button", name="Add budget").click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_label("Limit, USD").fill("20")
    dialog.get_by_role("button", name="Add budget").click()
    row = page.get_by_role("row", name=re.compile("My organisation"))
    expect(row).to_contain_text("US$20.00")
    row.get_by_role("button", name=re.compile("^Change the budget")).click()
    dialog.get_by_label("Limit, USD").fill("25.5")
    dialog.get_by_role("button", name="Change limit").click()
    expect(row).to_contain_text("US$25.50")
    row.get_by_role("button", name=re.compile("^Delete the budget")).click()
    dialog.get_by_role("button", name="Delete budget").click()
    expect(row).to_have_count(0)


def test_a_key_is_shown_once_works_and_can_be_revoked(page: Page, platform_up: Platform) -> None:
    sign_in(page, platform_up)
    page.get_by_role("navigation", name="Main").get_by_role("link", name="API keys").click()
    page.get_by_role("button", name="Create key").first.click()
    page.get_by_role("dialog").get_by_label("Name").fill("from the browser")
    page.get_by_role("dialog").get_by_role("button", name="Create key").click()
    secret = platform_up.wait_for(
        lambda: next(iter(re.findall(r"bth_sk_[0-9A-Za-z]{40,}", page.content() + secret_field(page))), None)
    )
    models = f"{platform_up.demo['api_base']}/models"
    headers = {"Authorization": f"Bearer {secret}"}
    platform_up.wait_for(lambda: httpx.get(models, headers=headers).status_code == 200)
    page.get_by_role("button", name="I have stored it").click()
    assert secret not in page.content() + secret_field(page)
    page.reload()
    row = page.get_by_role("row", name=re.compile("from the browser"))
    expect(row).to_be_visible()
    assert secret not in page.content()
    row.get_by_role("button", name=re.compile("Revoke")).click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_role("textbox").fill(secret[-4:])
    dialog.get_by_role("button", name=re.compile("Revoke")).click()
    expect(row.get_by_text(re.compile("Revoked"))).to_be_visible()
    platform_up.wait_for(lambda: httpx.get(models, headers=headers).status_code == 401)


def secret_field(page: Page) -> str:
    """Values of inputs are not in the page's markup."""
    return str(page.evaluate("() => [...document.querySelectorAll('input')].map(i => i.value).join(' ')"))


def test_usage_and_statement_agree(page: Page, platform_up: Platform) -> None:
    sign_in(page, platform_up)
    navigation = page.get_by_role("navigation", name="Main")
    navigation.get_by_role("link", name="Usage").click()
    expect(page.get_by_role("heading", level=1)).to_have_text("Usage")
    expect(page.get_by_role("table").first).to_be_visible()
    navigation.get_by_role("link", name="Statements").click()
    expect(page.get_by_role("heading", level=1)).to_contain_text("Statement")
    expect(page.get_by_role("table").first).to_be_visible()


def test_everything_is_there_in_chinese_too(page: Page, platform_up: Platform) -> None:
    sign_in(page, platform_up)
    page.get_by_role("link", name="Account").or_(page.get_by_role("button", name="Account")).first.click()
    page.get_by_role("group", name="Language").first.get_by_text("简体中文").click()
    navigation = page.get_by_role("navigation").first
    for word in ("模型", "部署", "用量", "账单"):
        expect(navigation.get_by_text(word).first).to_be_visible()
    assert page.evaluate("() => document.documentElement.lang").startswith("zh")


@pytest.mark.threat("A7")
def test_names_and_answers_are_text_never_markup(page: Page, platform_up: Platform) -> None:
    """A key's name may be anything; it is shown, and it does not run (threat A7)."""
    session = platform_up.sign_in()
    evil = "<img src=x onerror=alert(1)>"
    session.post("/api/v1/orgs/my-org/keys", json={"name": evil}).raise_for_status()
    dialogs: list[str] = []
    page.on("dialog", lambda dialog: (dialogs.append(dialog.message), dialog.dismiss()))
    sign_in(page, platform_up)
    page.get_by_role("navigation", name="Main").get_by_role("link", name="API keys").click()
    expect(page.get_by_text(evil).first).to_be_visible()
    assert dialogs == []
