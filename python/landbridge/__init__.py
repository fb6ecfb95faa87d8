"""Landbridge as installed in this Python environment: its version, the command, the libfabric provider.

>>> import landbridge, subprocess
>>> subprocess.run([landbridge.command(), "sites", "check"])
"""

from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

__all__ = ["__version__", "command", "provider"]


def _installed(name):
    for file in distribution("landbridge").files or ():
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


try:
    __version__ = distribution("landbridge").version
except PackageNotFoundError as error:
    raise ImportError("the package landbridge is not installed here: pip install landbridge") from error
