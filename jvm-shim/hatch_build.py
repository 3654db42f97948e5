"""Hatchling's hook: every wheel, editable or not, gets the shim's jar for the installed pyspark.

It also gets the current jars for other minor versions of Spark. `make wheel` builds those first.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

sys.path.insert(0, str(Path(__file__).parent))
from build_shim import build_jar, jars_of_other_versions


class ShimBuildHook(BuildHookInterface):  # type: ignore[type-arg]  # the parameter differs between hatchling releases
    """Builds the jar in the source tree. A wheel that is not editable gets a copy of it."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Build the jar if its sources changed. `version` is hatchling's: editable or standard."""
        jar = build_jar(Path(self.root))
        if version != "editable":
            for each in (jar, *jars_of_other_versions(Path(self.root), jar)):
                build_data["force_include"][str(each)] = f"millpond/jars/{each.name}"
