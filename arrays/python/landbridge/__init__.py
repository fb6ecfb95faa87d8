"""Landbridge as installed in this Python environment: arrays between layouts, the command, the libfabric provider.

>>> import landbridge, subprocess
>>> subprocess.run([landbridge.command(), "sites", "check"])
"""

from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from typing import TYPE_CHECKING, Any

from . import layout
from ._core import VERSION as __version__
from .layout import *
from .running import PlanError, Running

if TYPE_CHECKING:
    from .coupling import Coupling, CouplingError, Fetching, join
    from .redistribution import Plan, Select, plan, redistribute

__all__ = [
    "Coupling",
    "CouplingError",
    "Fetching",
    "Plan",
    "PlanError",
    "Running",
    "Select",
    "__version__",
    "command",
    "join",
    "plan",
    "provider",
    "redistribute",
]
__all__ += layout.__all__


def _installed(name: str) -> Path:
    try:
        files = distribution("landbridge").files
    except PackageNotFoundError as error:
        text = (
            "the package landbridge is not installed here: install the wheel that `make dist` made, "
            "or that your site has"
        )
        raise FileNotFoundError(f"{name}: {text}") from error
    for file in files or ():
        if file.name == name:
            return Path(str(file.locate())).resolve()
    raise FileNotFoundError(f"{name} is not among the files of the installed package landbridge: install it again")


def command() -> Path:
    """Path of the `landbridge` command."""
    return _installed("landbridge")


def provider() -> Path:
    """Path of the libfabric provider. For programs that `landbridge run` does not start, set `FI_PROVIDER_PATH` to its
    folder."""
    return _installed("liblandbridge-fi.so")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


def __getattr__(name: str) -> Any:
    # Only programs that redistribute arrays import NumPy.
    if name in ("Plan", "Select", "plan", "redistribute"):
        from . import redistribution

        return getattr(redistribution, name)
    if name in ("Coupling", "CouplingError", "Fetching", "join"):
        from . import coupling

        return getattr(coupling, name)
    raise AttributeError(f"module 'landbridge' has no attribute {name!r}")
