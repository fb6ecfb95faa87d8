"""Inside a lab: the jobs of one place, one after the other. Reads them from a file, and prints the outcome of each.

python inside.py JOBS.json
"""

import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from conformance.job import Job
from conformance.suites import run_job


def main():
    for fields in json.loads(Path(sys.argv[1]).read_text()):
        run_job(Job(**fields))


if __name__ == "__main__":
    main()
