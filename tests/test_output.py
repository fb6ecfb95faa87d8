"""Output of ranks that pause within a line."""

import os

from harness import LANDBRIDGE


def test_a_question_is_shown_before_its_answer(workshop):
    program = "printf 'name? '; read name; echo hello $name; printf '10%%\\r'; sleep 0.5; printf '20%%\\r'; read x"
    reading, writing = os.pipe()
    words = [LANDBRIDGE, "run", "-n", "1", "--", "bash", "-c", program]
    running = workshop.start(words, limit=40, stdin=reading)
    os.close(reading)

    def out():
        return running.out_path.read_bytes()

    running.wait_for(lambda: out() == b"name? ", 20, "the question")
    os.write(writing, b"you\n")
    running.wait_for(lambda: b"hello you\n" in out(), 20, "the answer")
    running.wait_for(lambda: b"10%\r" in out(), 20, "how far it is")
    os.close(writing)
    done = running.finish(within=20)
    assert out() == b"name? hello you\n10%\r20%\r", str(done)


def test_lines_of_other_ranks_stay_whole_while_one_asks(workshop):
    program = (
        'if [ $PMI_RANK = 0 ]; then printf "name? "; sleep 1; echo; else sleep 0.5; for n in 1 2 3; do echo line $n; '
        "done; fi"
    )
    for words, lines in ([], ["name? ", "line 1", "line 2", "line 3", ""]), (["--prefix"], None):
        done = workshop.run([LANDBRIDGE, "run", "-n", "2", *words, "--", "bash", "-c", program], limit=40).check()
        if lines is None:
            assert [line.split("] ", 1)[1] for line in done.out.splitlines() if "line" in line] == [
                "line 1", "line 2", "line 3",
            ], str(done)  # fmt: skip
        else:
            assert done.out.split("\n")[:-1] == lines, str(done)


def test_a_command_whose_output_nobody_reads_ends_as_other_programs_do(workshop):
    (workshop.folder / "empty").mkdir()
    words = f"(sleep 0.3; HOME={workshop.folder}/empty {LANDBRIDGE} sites list) | true; exit ${{PIPESTATUS[0]}}"
    done = workshop.run(["bash", "-c", words])
    assert (done.code, done.err) == (141, ""), str(done)
