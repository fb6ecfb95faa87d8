"""libfabric's fabtests: server and client pairs on this machine, from an installed fabtests (`FABTESTS=folder of
fi_rdm …`).

fabtests' own `runfabtests.sh` wants ssh even for localhost and ends processes by name; this does neither. It
runs the tests that the script calls unit, functional and short, as far as they are for reliable datagram endpoints
(`-e rdm`), the only kind that landbridge offers. Each test gets a port of its own."""

import contextlib
import os
import re
from pathlib import Path

from harness import PROVIDER, free_port, wait_until

from . import ubertest
from .job import CRASHED, FAILED, HUNG, OURS, PASSED, RIVAL, SKIPPED, Job, result
from .process import Child, clean_environment

NAME = "fabtests"
# Exit codes of tests when the provider lacks a feature that they need: ENODATA, ENOSYS, EOPNOTSUPP.
NOT_OFFERED = {61: "ENODATA", 38: "ENOSYS", 95: "EOPNOTSUPP"}
LIMIT_S = 60.0
# Time until a server listens. Some tests' servers never do; their clients are then started anyway.
LISTEN_S = 3.0

ALONE = [
    "fi_getinfo_test -s 127.0.0.1 127.0.0.1",
    "fi_av_test -g 127.0.0.1 -n 1 -s 127.0.0.1 -e rdm",
    "fi_dom_test -n 2",
    "fi_eq_test",
    "fi_cq_test",
    "fi_mr_test",
    "fi_cntr_test",
    "fi_setopt_test",
]
PAIRS = [
    "fi_rdm",
    "fi_rdm -U",
    "fi_av_xfer -e rdm",
    "fi_rdm_shared_av",
    "fi_rdm_tagged_peek",
    "fi_recv_cancel -e rdm -V",
    "fi_unexpected_msg -e rdm -I 10 -v",
    "fi_cq_data -e rdm -o senddata",
    "fi_cq_data -e rdm -o writedata",
    "fi_inject_test -A inject -v",
    "fi_inject_test -N -A inject -v",
    "fi_inject_test -A inj_complete -v",
    "fi_inject_test -N -A inj_complete -v",
    "fi_rdm_rma_event",
    "fi_rdm_rma_trigger",
    "fi_multi_mr -e rdm -V",
    "fi_multi_ep -e rdm -v -A",
    "fi_multi_ep -e rdm -v -Q",
    "fi_multi_ep -e rdm -v -A -Q",
    "fi_multi_ep -e rdm -v --threading completion",
    "fi_multi_ep -e rdm -v -A --threading completion",
    "fi_multi_ep -e rdm -v -Q --threading completion",
    "fi_multi_ep -e rdm -v -A -Q --threading completion",
    "fi_flood -e rdm -v -T 1",
    "fi_flood -e rdm -v -T 1 -U",
    "fi_rdm_multi_client -C 10 -I 5",
    "fi_rdm_multi_client -C 10 -I 5 -U",
    "fi_resmgmt_test",
    "fi_rdm_multi_domain",
    "fi_multi_recv -e rdm -I 5",
    *(f"fi_rma_bw -e rdm -o {how} -I 5{more}" for how in ("write", "read", "writedata") for more in ("", " -U", " -v")),
    *(f"fi_rdm_atomic -I 5 -o {how}{more}" for how in ("all",) for more in ("", " -U", " -v", " -U -v")),
    "fi_rdm_cntr_pingpong -I 5",
    "fi_rma_pingpong -e rdm -o writedata -I 5",
    "fi_rma_tx_completion -e rdm",
    *(
        f"fi_{name} -I 5{more}"
        for name in ("rdm_pingpong", "rdm_tagged_pingpong", "rdm_tagged_bw", "rdm_bw")
        for more in ("", " -U", " -v", " -v -U")
    ),
    "fi_rdm_pingpong -I 5 -c sread",
    "fi_rdm_pingpong -I 5 -c fd",
    "fi_rdm_tagged_pingpong -I 5 -c sread",
    "fi_rdm_tagged_pingpong -I 5 -c fd",
    "fi_rdm_cntr_pingpong -I 5 -c sread",
    "fi_rdm_bw_mt -n 4",
]
# The quick part: one of each kind.
QUICK = [
    "fi_av_test -g 127.0.0.1 -n 1 -s 127.0.0.1 -e rdm",
    "fi_cq_test",
    "fi_cntr_test",
    "fi_mr_test",
    "fi_rdm",
    "fi_rdm_tagged_peek",
    "fi_recv_cancel -e rdm -V",
    "fi_multi_recv -e rdm -I 5",
    "fi_rma_bw -e rdm -o writedata -I 5",
    "fi_rdm_atomic -I 5 -o all -v",
    "fi_rdm_cntr_pingpong -I 5",
    "fi_rdm_tagged_pingpong -I 5 -v",
    "fi_unexpected_msg -e rdm -I 10 -v",
]


def missing():
    """Why this suite cannot run, or None."""
    folder = os.environ.get("FABTESTS")
    if not folder:
        return "FABTESTS is not set: give the folder of an installed fabtests (with fi_rdm, fi_ubertest, …)"
    if not (Path(folder) / "fi_rdm").exists():
        return f"FABTESTS={folder}: no fi_rdm there: give the bin folder of an installed fabtests"
    return None


def jobs(options):
    """All tests, on both providers."""
    units = QUICK if options.quick else [*ALONE, *PAIRS, *(f"fi_ubertest {group}" for group in ubertest.GROUPS)]
    return [Job(NAME, unit, provider) for unit in units for provider in (OURS, RIVAL)]


def execute(job):
    """Runs one test; one case."""
    job.folder.mkdir(parents=True, exist_ok=True)
    words = job.unit.split()
    program = Path(os.environ["FABTESTS"]) / words[0]
    if not program.exists():
        return [result(job.unit, SKIPPED, f"{program} is not there")]
    environment = clean_environment({"FI_PROVIDER_PATH": str(PROVIDER.parent)} if job.provider == OURS else {})
    if words[0] == "fi_ubertest":
        return [_ubertest(job, program, words[1], environment)]
    words = [program, *words[1:], "-p", job.provider]
    if job.unit in ALONE:
        child = Child(words, job.folder, environment=environment)
        return [_verdict(job.unit, [("", child, child.wait(LIMIT_S))])]
    port = free_port()
    server = Child([*words, "-s", "127.0.0.1", "-B", port], job.folder, "server", environment)
    return [
        _pair(
            job.unit, server, port, lambda: Child([*words, "-P", port, "127.0.0.1"], job.folder, "client", environment)
        )
    ]


def _ubertest(job, program, group, environment):
    ports = [free_port() for _ in range(2)]
    config = job.folder / "ubertest.config"
    config.write_text(ubertest.configuration(group, job.provider))
    server = Child([program, "-x", "-q", ports[0]], job.folder, "server", environment)
    words = [program, "-q", ports[0], "-P", ports[1], "-u", config, "127.0.0.1"]
    found = _pair(
        job.unit, server, ports[0], lambda: Child(words, job.folder, "client", environment), ubertest.LIMIT_S, LIMIT_S
    )
    counts = ubertest.counts((job.folder / "client.out").read_text(errors="replace"))
    if found["outcome"] == SKIPPED and counts["Success"] and not counts["ERROR"]:
        # Combinations that neither provider has to offer do not count as failures; the numbers that passed are
        # compared.
        found.update(outcome=PASSED, detail="")
    found["passes"] = counts["Success"]
    found["detail"] = "; ".join(filter(None, [found["detail"], ubertest.describe(counts)]))
    return found


def _pair(unit, server, port, start_client, limit=LIMIT_S, quiet=None):
    """Runs a client against a started server; returns one case for both ends. `quiet`: seconds for which it may
    write nothing."""
    with contextlib.suppress(AssertionError):
        wait_until(lambda: listens(port) or not server.running(), LISTEN_S, "a server")
    client = start_client()
    try:
        at_client = client.wait(limit, lambda: client.out.stat().st_size, quiet)
        # A server whose client failed may wait forever; that is not a separate finding.
        at_server = server.wait(server_limit(client, server, at_client, limit))
    finally:
        client.end()
        server.end()
    return _verdict(unit, [("client", client, at_client), ("server", server, at_server)])


def server_limit(client, server, at_client, limit):
    """Seconds since its start for which a server may continue after its client has ended."""
    gone = client.started - server.started + at_client.seconds
    return gone + (5.0 if at_client.code != 0 else limit)


def _verdict(unit, ends):
    codes = [ended.code for _, _, ended in ends]
    seconds = max(ended.seconds for _, _, ended in ends)
    if all(code == 0 for code in codes):
        return result(unit, PASSED, seconds=seconds)
    said = "\n".join(f"{name or 'it'}: {ended}\n{child.text(1500)}" for name, child, ended in ends)
    if codes[0] in NOT_OFFERED and all(code in NOT_OFFERED or code is None for code in codes):
        return result(unit, SKIPPED, f"not offered ({NOT_OFFERED[codes[0]]})\n{said}", seconds)
    if codes[0] is None or (codes[0] == 0 and codes[-1] is None):
        outcome = HUNG
    else:
        outcome = CRASHED if any(code is not None and code < 0 for code in codes) else FAILED
    return result(unit, outcome, said, seconds)


def listens(port):
    """Whether a process listens on this port, without connecting to it."""
    pattern = re.compile(rf"^ *\d+: [0-9A-F]+:{port:04X} [0-9A-F:]+ 0A ", re.MULTILINE)
    return any(pattern.search(Path(f"/proc/net/{table}").read_text()) for table in ("tcp", "tcp6"))
