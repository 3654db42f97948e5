"""Hatchling's door to `build_shim.py`: every wheel, editable or not, gets the shim's jar for the pyspark at hand.

And, if they are there and current, the jars for other minor lines of Spark: `make wheel` sees to that.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

sys.path.insert(0, str(Path(__file__).parent))
from build_shim import build_jar, jars_of_other_lines


class ShimBuildHook(BuildHookInterface):  # type: ignore[type-arg]  # the parameter differs between hatchling releases
    """Builds the jar in the source tree and, for a wheel that is no pointer to that tree, puts it inside."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Build the jar if its sources changed; `version` is hatchling's word for editable or standard."""
        jar = build_jar(Path(self.root))
        if version != "editable":
            for each in (jar, *jars_of_other_lines(Path(self.root), jar)):
                build_data["force_include"][str(each)] = f"millpond/jars/{each.name}"
