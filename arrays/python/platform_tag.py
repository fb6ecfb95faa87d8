"""Marks the wheel as one for a machine and for any Python from 3.9 on."""

import os
from pathlib import Path

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class PlatformTag(BuildHookInterface):
    def initialize(self, version, build_data):
        command = Path(self.root, "built", "bin", "landbridge")
        tag = os.environ.get("LANDBRIDGE_WHEEL_TAG")
        if not tag or not command.is_file():
            raise RuntimeError(
                f"{command} is not there: the wheel is made by `make dist` at the top of Landbridge's sources, "
                "not from here"
            )
        build_data["tag"] = f"cp39-abi3-{tag}"
        build_data["pure_python"] = False
