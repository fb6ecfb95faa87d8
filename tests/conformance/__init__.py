"""Suites that others wrote, run on Landbridge and on libfabric's tcp provider side by side.

Start reading at `job.py` (the runs and their kept results), then `verdict.py` (the rules for a regression). Each suite
is a module with `jobs(options)` and `execute(job)`: `fabtests.py`, `mpi4py_suite.py`, `imb.py`. `run` is the command.
"""
