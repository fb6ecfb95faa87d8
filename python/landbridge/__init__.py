"""Landbridge as installed in this Python environment: arrays between layouts, the command, the libfabric provider.

>>> import landbridge, subprocess
>>> subprocess.run([landbridge.command(), "sites", "check"])
"""

from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

from ._core import VERSION as __version__
from .layout import Along, Block, Copies, Cyclic, Layout, Lists, Runs, Spread, Whole
from .running import PlanError, Running

__all__ = [
    "Along",
    "Block",
    "Copies",
    "Coupling",
    "CouplingError",
    "Cyclic",
    "Fetching",
    "Layout",
    "Lists",
    "Plan",
    "PlanError",
    "Running",
    "Runs",
    "Select",
    "Spread",
    "Whole",
    "__version__",
    "command",
    "join",
    "plan",
    "provider",
    "redistribute",
]


def _installed(name):
    try:
        files = distribution("landbridge").files
    except PackageNotFoundError as error:
        raise FileNotFoundError(f"{name}: the package landbridge is not installed here: pip install landbridge") from error
    for file in files or ():
        if file.name == name:
            return Path(file.locate()).resolve()
    raise FileNotFoundError(f"{name} is not among the files of the installed package landbridge: install it again")


def command():
    """Path of the `landbridge` command."""
    return _installed("landbridge")


def provider():
    """Path of the libfabric provider. Its folder is what `FI_PROVIDER_PATH` takes, for programs that `landbridge
    run` does not start."""
    return _installed("liblandbridge-fi.so")


def __getattr__(name):
    # NumPy is imported by those who redistribute arrays only.
    if name in ("Plan", "Select", "plan", "redistribute"):
        from . import redistribution

        return getattr(redistribution, name)
    if name in ("Coupling", "CouplingError", "Fetching", "join"):
        from . import coupling

        return getattr(coupling, name)
    raise AttributeError(f"module 'landbridge' has no attribute {name!r}")
