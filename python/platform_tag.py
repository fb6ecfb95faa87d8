"""Marks the wheel as one for a machine, though its Python is for any."""

import os
from pathlib import Path

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class PlatformTag(BuildHookInterface):
    def initialize(self, version, build_data):
        command = Path(self.root, "built", "bin", "landbridge")
        tag = os.environ.get("LANDBRIDGE_WHEEL_TAG")
        if not tag or not command.is_file():
            raise RuntimeError(f"{command} is not there: the wheel is made by `make dist` at the top of Landbridge's sources, not from here")
        build_data["tag"] = f"py3-none-{tag}"
        build_data["pure_python"] = False
