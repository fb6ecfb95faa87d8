"""`make demo` as a user runs it, with the files that make has built already."""

import re

import pytest

from harness import BUILT, ROOT


@pytest.mark.slow
def test_the_demo_ends_with_its_table(workshop, mpich_only):
    done = workshop.run([mpich_only.python, ROOT / "scripts" / "demo.py", BUILT], limit=150).check()
    assert "identical, bit for bit" in done.out, str(done)
    for row in ("sites", "ranks", "bytes relayed", "MFLOPS", "time communicating"):
        assert re.search(rf"^{row} ", done.out, re.MULTILINE), f"no row `{row}`\n{done}"
    relayed = re.search(r"^bytes relayed +0 +([\d.]+) MB$", done.out, re.MULTILINE)
    assert relayed and float(relayed[1]) > 1, str(done)
