"""The paths in a job's #BB_LUA lines are checked before the job computes. See test_slurm_staging.py."""

from harness import LANDBRIDGE
from slurm_jobs import RATE, begin, gone, job, on, until


def comment(name):
    """Shell words that show a job and Slurm's comment on it."""
    return f"scontrol show job $(squeue -h -n {name} -o %i)"


def test_a_job_whose_output_has_no_folder_does_not_start(workshop, people, slurm):
    """It is held with the reason before it computes. With the folder, the same script runs."""
    anna, _ = people
    (workshop.folder / "to").mkdir()
    ran, out = anna.home / "ran", workshop.folder / "to" / "none" / "out"
    path = job(workshop, anna, "typo", f"stage_out=/tmp/typo=b:{out} {RATE}", body=f"touch {ran}; echo out > /tmp/typo")
    reason = f"{out.parent}: there is no such folder: make it"
    done = begin(
        workshop,
        anna,
        f"anna: {LANDBRIDGE} slurm check {path} || echo CHECKED $?",
        f"anna: cd; sbatch -N1 -t1 -o /dev/null {path}",
        until(f"{comment('typo')} | grep -qF '{reason}'"),
        f"test ! -e {ran}; squeue -h -n typo -o 'while it is %T'",
        f"mkdir {out.parent}",
        f"anna: {LANDBRIDGE} slurm check {path}",
        f"scancel -n typo; {gone('typo')}",
        f"anna: cd; sbatch -N1 -t1 -o /dev/null {path}",
        f"{until(f'test -e {out}', 90)}; {gone('typo')}",
        on("a-n1", "rm /tmp/typo"),
        nodes=1,
        staging=True,
        limit=200,
    ).finish()
    done.check()
    assert "while it is PENDING" in done.out and "CHECKED 1" in done.out and "1 place(s) usable" in done.out, str(done)
    assert f"b:{out}: {reason}" in done.err, str(done)
    assert out.read_text() == "out\n", str(done)


def test_a_job_whose_output_its_user_cannot_write_does_not_start(workshop, people, slurm):
    """On its own nodes, where the folder is root's."""
    anna, _ = people
    ran = anna.home / "ran"
    path = job(
        workshop, anna, "roots", f"stage_out=/tmp/roots=/roots/out {RATE}", body=f"touch {ran}; echo out > /tmp/roots"
    )
    done = begin(
        workshop,
        anna,
        f"anna: cd; sbatch -N1 -t1 -o /dev/null {path}",
        until(f"{comment('roots')} | grep -q '/roots: there is no such folder'"),
        f"test ! -e {ran} && echo NOT RUN; {comment('roots')}; scancel -n roots; {gone('roots')}",
        nodes=1,
        staging=True,
        limit=150,
    ).finish()
    done.check()
    assert "NOT RUN" in done.out, str(done)


def test_a_site_that_does_not_answer_keeps_no_job_waiting(workshop, people, slurm):
    """The job starts, with a comment that its places were not checked."""
    anna, _ = people
    ran = anna.home / "ran"
    path = job(
        workshop,
        anna,
        "blind",
        f"stage_out=/tmp/blind=b:{workshop.folder}/none/out {RATE}",
        body=f"touch {ran}; sleep 20",
    )
    running = begin(
        workshop,
        anna,
        f"touch {workshop.folder}/begun; {until(f'test -e {workshop.folder}/cut')}",
        f"anna: cd; sbatch -N1 -t1 -o /dev/null {path}",
        f"{until(f'test -e {ran}', 90)}; {comment('blind')}; scancel -n blind",
        (
            f"{until('squeue -h -n blind -t STAGE_OUT -o %i | grep -q .')}; "
            f"scancel --hurry $(squeue -h -n blind -o %i); {gone('blind')}"
        ),
        nodes=1,
        staging=True,
        limit=250,
    )
    running.wait_for((workshop.folder / "begun").exists, 90, "the services")
    [gateway] = [process for process in running.processes("gateway") if process.words[-1] == "b"]
    gateway.kill()
    (workshop.folder / "cut").touch()
    done = running.finish().check()
    assert "landbridge: not checked before the job: b:" in done.out, str(done)
