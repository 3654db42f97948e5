"""Makes the environments. A line says which Java or Python is not there, and how to get it."""

import sys

from integration.peers.fetching import FetchError
from integration.peers.runtimes.found import RUNTIMES, Missing, prepare

there = 0
for runtime in RUNTIMES:
    try:
        prepare(runtime)
        there += 1
    except Missing as missing:
        print(f"millpond: make peer-runtimes leaves out {runtime.title}: {missing}")
    except FetchError as error:
        sys.exit(f"millpond: make peer-runtimes cannot run: {error}")
if not there:
    sys.exit("millpond: make peer-runtimes cannot run: it found none of the above")
