"""Changes of a job: the jobs before and after, what Spark does, and what Millpond does.

The table of `docs/guides/changing.md` has a line for each. `test_changing` runs them.
"""

from integration.changes.operators import OPERATORS
from integration.changes.rest import REST
from integration.changes.times import TIMES

CHANGES = [*OPERATORS, *TIMES, *REST]
