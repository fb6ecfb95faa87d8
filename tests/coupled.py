"""Programs at two sites of this machine that exchange arrays."""

import os

from harness import BUILT, LANDBRIDGE, LoopbackSites

PACKAGE = BUILT / "python"
PATH = f"{LANDBRIDGE.parent}:{os.environ['PATH']}"


class Coupled:
    """Two sites on this machine, and programs at them."""

    def __init__(self, workshop, **options):
        self.workshop, self.sites = workshop, LoopbackSites(workshop, **options)
        self.gateways = self.sites.start_gateways()

    def environment(self, mpi, site):
        return {
            **mpi.environment,
            "PYTHONPATH": str(PACKAGE),
            "PATH": PATH,
            "LANDBRIDGE_SITES": str(self.sites.file),
            "LANDBRIDGE_SITE_NAME": site,
        }

    def start(self, mpi, site, ranks, *words, limit=120):
        """Starts a program with its MPI library's own launcher."""
        words = [*mpi.launcher, "-n", ranks, mpi.python, *words]
        return self.workshop.start(words, environment=self.environment(mpi, site), limit=limit)

    def python(self, mpi, site, text, limit=60):
        """Starts one process without MPI."""
        return self.workshop.start([mpi.python, "-c", text], environment=self.environment(mpi, site), limit=limit)
