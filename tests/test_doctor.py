"""`landbridge doctor`: findings with remedies that work when typed, one file to attach, and no secrets in it."""

import json
import os
import re
import stat

import pytest

from harness import LANDBRIDGE

SECRETS = {"HF_TOKEN": "hf_5ec7e7", "LANDBRIDGE_SECRET": "deadbeef5ec7e7"}


def doctor(workshop, *options, environment=None):
    """Runs it where no sites file is; gives the outcome and the file's text."""
    file = workshop.folder / "report.txt"
    home = workshop.folder / "home"
    home.mkdir(exist_ok=True)
    plain = {"HOME": str(home), "XDG_CONFIG_HOME": "", "XDG_STATE_HOME": "", "LANDBRIDGE_SITES": ""}
    words = [LANDBRIDGE, "doctor", "--output", file, *options]
    done = workshop.run(words, environment={**plain, **(environment or {})})
    return done, file.read_text()


def in_lab(workshop, script, environment=None):
    """Types a script in a lab, with landbridge on the path. The report is report.txt in the test's folder."""
    path = f"{LANDBRIDGE.parent}:{os.environ['PATH']}"
    command = ["bash", "-c", f"cd {workshop.folder}; {script}"]
    return workshop.lab(command, environment={"PATH": path, **(environment or {})}).finish()


def failures(text):
    return re.findall(r"^FAILED  (.*?)  ", text, re.MULTILINE)


def test_without_a_sites_file_nothing_is_wrong(workshop):
    done, text = doctor(workshop, environment=SECRETS)
    done.check()
    assert "nothing is wrong" in done.out and not failures(done.out), str(done)
    assert "`landbridge sites add NAME [USER@]HOST` begins one" in done.out, str(done)
    for part in ("landbridge", "provider", "kernel", "C library", "open files", "/dev/shm", "ptrace", "ssh"):
        assert re.search(rf"^(ok|note) +{part} ", text, re.MULTILINE), f"{part} is not in\n{text}"
    assert "== environment ==" in text and "LANDBRIDGE_SECRET=[removed]" in text
    assert not any(secret in text for secret in SECRETS.values()), text


def test_the_file_has_a_name_with_the_date_and_only_its_owner_reads_it(workshop):
    home = {"HOME": str(workshop.folder), "LANDBRIDGE_SITES": ""}
    done = workshop.run([LANDBRIDGE, "doctor", "--json"], cwd=workshop.folder, environment=home).check()
    answer = json.loads(done.out)
    assert answer["schema"] == 1 and answer["ok"] is True, done
    assert re.fullmatch(r"landbridge-doctor-\d{4}-\d\d-\d\d-\d{6}\.txt", answer["file"]), answer["file"]
    file = workshop.folder / answer["file"]
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert all(set(finding) == {"part", "verdict", "detail", "remedy"} for finding in answer["findings"])
    assert {finding["verdict"] for finding in answer["findings"]} <= {"ok", "note"}, answer


def test_settings_that_cannot_work_are_named_and_the_remedy_works(workshop):
    bad = {"FI_PROVIDER": "tcp", "LANDBRIDGE_PROVIDER": "/nowhere/liblandbridge-fi.so"}
    done, text = doctor(workshop, environment=bad)
    assert done.code == 1 and "things are wrong" in done.out, str(done)
    assert {"FI_PROVIDER", "LANDBRIDGE_PROVIDER", "provider"} == {part.strip() for part in failures(text)}, text
    remedies = re.findall(r"-> (unset \w+)", done.out)
    assert set(remedies) == {"unset FI_PROVIDER", "unset LANDBRIDGE_PROVIDER"}, str(done)
    typed = " && ".join([*remedies, f"{LANDBRIDGE} doctor --output {workshop.folder / 'again.txt'}"])
    home = {"HOME": str(workshop.folder), "LANDBRIDGE_SITES": ""}
    workshop.run(["bash", "-c", typed], environment={**bad, **home}).check()


def test_a_sites_file_that_cannot_be_read_is_named_with_its_line(workshop):
    sites = workshop.folder / "sites.toml"
    sites.write_text('[[site]]\nname = "lyon"\nnonsense = 1\n')
    done, text = doctor(workshop, "--sites", sites)
    assert done.code == 1 and [part.strip() for part in failures(text)] == ["sites file"], str(done)
    assert str(sites) in done.out and "nonsense" in done.out, str(done)


@pytest.mark.parametrize("key", [None, "other.key"], ids=["no key", "another key"])
def test_a_machine_with_no_usable_key_and_no_way_over_ssh_is_told(workshop, key):
    sites = workshop.folder / "sites.toml"
    workshop.run([LANDBRIDGE, "key", workshop.folder / "other.key"]).check()
    lines = ["[[site]]", 'name = "lyon"', f'fingerprint = "sha256:{"0" * 64}"']
    lines += [f'key = "{key}"'] if key else []
    lines += ["[[site.gateway]]", 'name = "gw1"', 'advertise = "192.0.2.1:7700"', "[[site.node]]", 'name = "n1"', ""]
    sites.write_text("\n".join(lines))
    done, text = doctor(workshop, "--sites", sites)
    assert done.code == 1 and [part.strip() for part in failures(text)] == ["site"], str(done)
    assert "no site's key can be used here" in done.out and "lyon" in done.out, str(done)


def test_a_file_that_cannot_be_written_is_named(workshop):
    home = {"HOME": str(workshop.folder), "LANDBRIDGE_SITES": ""}
    done = workshop.run([LANDBRIDGE, "doctor", "--output", "/proc/no/report.txt"], environment=home)
    done.fails_naming("/proc/no/report.txt", "choose another file with --output FILE")


@pytest.mark.slow
def test_in_a_healthy_lab_every_part_of_it_is_ok(workshop, isolated):
    done = in_lab(workshop, "landbridge doctor --output report.txt").check()
    text = (workshop.folder / "report.txt").read_text()
    assert "nothing is wrong" in done.out and "nothing is wrong" in text, str(done)
    for part in ("a: gateway gw1", "b: trunk from a", "a: node n1", "b: node n2"):
        assert re.search(rf"^ok +{part} ", text, re.MULTILINE), f"{part} is not in\n{text}"
    assert "== sites file /run/landbridge-lab/sites.toml ==" in text and "PRIVATE KEY" not in text


@pytest.mark.slow
def test_a_dead_gateway_is_named_with_what_starts_it(workshop, isolated):
    done = in_lab(workshop, "landbridge lab kill a-gw1; landbridge doctor --output report.txt; echo code $?")
    text = (workshop.folder / "report.txt").read_text()
    assert "code 1" in done.out and [part.strip() for part in failures(text)] == ["a: gateway gw1"], str(done)
    assert "-> on its own machine `landbridge sites start a` starts it again" in done.out, str(done)
