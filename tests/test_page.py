"""A gateway's page in a real browser, and its metrics: while a job runs, when the other site is lost, and when the
gateway is."""

import os
import shutil
import signal
import socket
import urllib.request

import pytest
from prometheus_client.parser import text_string_to_metric_families
from selenium import webdriver
from selenium.webdriver.chrome.service import Service

from harness import LANDBRIDGE, PROGRAMS, LoopbackSites, wait_until

# A browser under test makes no other requests.
SWITCHES = [
    "--headless",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-dev-shm-usage",
    "--window-size=1200,900",
]


@pytest.fixture
def browser(workshop):
    chromium, driver = shutil.which("chromium"), shutil.which("chromedriver")
    if not chromium or not driver:
        pytest.skip("chromium or chromedriver is not there: as root, apt install chromium chromium-driver")
    options = webdriver.ChromeOptions()
    options.binary_location = chromium
    # Chromium's sandbox does not run as root.
    for switch in SWITCHES + ["--no-sandbox"] * (os.geteuid() == 0):
        options.add_argument(switch)
    options.add_argument(f"--user-data-dir={workshop.folder / 'browser'}")
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    opened = webdriver.Chrome(
        options=options, service=Service(driver, log_output=str(workshop.folder / "chromedriver.log"))
    )
    yield opened
    opened.quit()


# The page's content, read through the ids and data attributes that exist for this purpose.
SEEN = """
const texts = (selector) => [...document.querySelectorAll(selector)].map((node) => node.textContent);
const all = (selector) => [...document.querySelectorAll(selector)];
const lines = all('#map [data-trunk]').map((line) => [line.dataset.trunk, {...line.dataset}]);
const table = (rows) => all(rows).map((row) => [...row.cells].map((cell) => cell.firstChild.textContent));
return {
    state: document.body.dataset.state,
    banner: document.getElementById('banner').hidden ? '' : document.getElementById('banner').textContent,
    own: [document.getElementById('site').textContent, document.getElementById('gateway').textContent],
    sites: [...document.querySelectorAll('#map [data-site]')].map((box) => box.dataset.site),
    trunks: Object.fromEntries(lines),
    problems: texts('#problems li'),
    points: Math.max(0, ...[...document.querySelectorAll('.graph .line.sent')].map((line) => line.points.length)),
    links: table('#links tbody tr'),
    jobs: table('#jobs tbody tr'),
};
"""


def test_the_page_and_the_metrics_follow_what_happens(workshop, browser, mpich_only):
    sites = LoopbackSites(workshop, pages=True)
    own, other = sites.start_gateways().values()
    url = f"http://127.0.0.1:{sites.pages['a', 1]}"
    browser.get(url + "/")

    def seen():
        return browser.execute_script(SEEN)

    def until(condition, what):
        try:
            return wait_until(lambda: (now := seen()) and condition(now) and now, 15, what)
        except AssertionError as error:
            raise AssertionError(f"{error}\nseen: {seen()}\nbrowser: {browser.get_log('browser')}") from None

    now = until(lambda now: now["state"] == "live" and "b/gw1" in now["trunks"], "the page")
    assert now["own"] == ["a", "gw1"] and sorted(now["sites"]) == ["a", "b"], now
    assert now["jobs"] == [["No job is open at this gateway."]] and now["banner"] == "", now

    started, stop = workshop.folder / "started", workshop.folder / "stop"
    words = [
        LANDBRIDGE,
        "run",
        "-n",
        4,
        "--mpi",
        mpich_only.name,
        "--",
        mpich_only.python,
        PROGRAMS / "exchange.py",
        started,
        stop,
        3,
    ]
    job = workshop.start(words, environment={**mpich_only.environment, "LANDBRIDGE_SITES": str(sites.file)}, limit=60)
    job.wait_for(started.exists, 30, "the first round")
    # The launcher, an agent and two ranks.
    now = until(
        lambda now: now["jobs"][0][1:3] == ["a: 2 ranks, b: 2 ranks", "4"] and now["trunks"]["b/gw1"]["state"] == "up",
        "the job",
    )
    name = now["jobs"][0][0]
    ahead = int(now["trunks"]["b/gw1"]["sent"])
    now = until(lambda now: int(now["trunks"]["b/gw1"]["sent"]) > ahead + 100_000, "bytes to grow")
    now = until(lambda now: now["points"] > 2 and now["links"][0][3] != "0 bit/s", "the graph and the link's rate")
    assert now["links"][0][0] == "b gw1" and now["links"][0][5].endswith(" ms"), now
    follow_metrics(url, name)

    stop.write_text("stop\n")
    job.finish().check()
    until(lambda now: now["jobs"] == [["No job is open at this gateway."]], "the job to be gone")
    assert not [entry for entry in browser.get_log("browser") if entry["level"] == "SEVERE"]

    other.child.kill()
    now = until(lambda now: now["trunks"]["b/gw1"]["state"] == "down", "the trunk to be down")
    assert "site b" in now["problems"][0] and "gw1" in now["problems"][0] and now["state"] == "live", now
    trunk_up = sample(metrics(url), "landbridge_trunk_up", peer_site="b", peer_gateway="gw1")
    assert trunk_up == 0

    own.child.send_signal(signal.SIGTERM)
    now = until(lambda now: now["state"] == "stale", "the page to notice")
    assert "has not answered since" in now["banner"] and now["own"] == ["a", "gw1"], now
    own.finish(within=30)
    sites.start_gateway("a")
    until(lambda now: now["state"] == "live" and now["banner"] == "", "the page to recover")


def test_a_page_that_cannot_be_had_is_told_and_jobs_run(workshop, mpich_only):
    sites = LoopbackSites(workshop, pages=True)
    with socket.create_server(("127.0.0.1", sites.pages["a", 1])):
        own, _ = sites.start_gateways().values()
        assert f"no page: cannot listen on 127.0.0.1:{sites.pages['a', 1]}" in own.err() and "ss -ltnp" in own.err(), (
            own.err()
        )
        sites.run(mpich_only, [mpich_only.python, PROGRAMS / "reach.py"]).check()


def follow_metrics(url, job):
    """Counters grow, and every value on the page is in the metrics."""
    before = metrics(url)
    peer = {"site": "a", "gateway": "gw1", "peer_site": "b", "peer_gateway": "gw1"}
    assert sample(before, "landbridge_trunk_up", **peer) == 1
    assert sample(before, "landbridge_link_round_trip_seconds", **peer, link="0") > 0
    assert sample(before, "landbridge_jobs", site="a") == 1
    assert sample(before, "landbridge_job_ranks", job=job, ranks_site="b") == 2
    assert sample(before, "landbridge_job_leads", job=job) == 1
    for name in (
        "landbridge_trunk_sent_bytes_total",
        "landbridge_trunk_received_bytes_total",
        "landbridge_relayed_frames_total",
    ):
        assert before[name].type == "counter" and before[name].documentation, before[name]
        first = sample(before, name)
        wait_until(lambda name=name, first=first: sample(metrics(url), name) > first > 0, 10, f"{name} to grow")


def metrics(url):
    """By the name that samples have: the parser takes `_total` off a counter's family."""
    with urllib.request.urlopen(url + "/metrics", timeout=10) as answer:
        assert answer.headers["Content-Type"].startswith("text/plain; version=0.0.4"), answer.headers
        families = list(text_string_to_metric_families(answer.read().decode()))
    return {family.name + "_total" * (family.type == "counter"): family for family in families}


def sample(found, name, **labels):
    """The value of the one sample that has these labels."""
    values = [sample.value for sample in found[name].samples if labels.items() <= sample.labels.items()]
    assert len(values) == 1, f"{name} {labels}: {found[name].samples}"
    return values[0]
