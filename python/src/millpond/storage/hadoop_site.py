"""Hadoop's settings as a command finds them: the files in HADOOP_CONF_DIR."""

from __future__ import annotations

import os
import xml.etree.ElementTree as ET
from pathlib import Path

from millpond.errors import ErrorKind, InvalidInputError
from millpond.storage.settings import HandedOver


def site_settings() -> HandedOver:
    """Return the properties of core-site.xml in HADOOP_CONF_DIR; none if there is no such file.

    Hadoop's client also follows includes and variables. A value with a variable is left out.

    Raises: InvalidInputError: STORAGE_MISCONFIGURED: the file cannot be read.
    """
    directory = os.environ.get("HADOOP_CONF_DIR")
    path = Path(directory or "", "core-site.xml")
    if not directory or not path.is_file():
        return HandedOver()
    try:
        found = ET.parse(path).getroot().iter("property")
    except (ET.ParseError, OSError) as e:
        raise InvalidInputError(
            f"{path} cannot be read: {e}",
            kind=ErrorKind.STORAGE_MISCONFIGURED,
            hint="Correct the file, or set HADOOP_CONF_DIR to another directory.",
        ) from e
    pairs = ((entry.findtext("name", ""), entry.findtext("value", "")) for entry in found)
    return HandedOver({name.strip(): value.strip() for name, value in pairs if "${" not in value})
