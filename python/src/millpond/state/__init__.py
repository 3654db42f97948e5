"""The state of queries as tables: selects the rows of a column family, decodes them to Arrow,
encodes them, finds their key groups, writes them for people.

Needs the extra `tools`, except for `selection` and `reading`. The API calls it, and the operations
that touch rows. It imports `query`, `rows` and what is below. Users call `millpond.state.read`,
which is `millpond.read_state`, and `millpond.state.list`.
"""

from millpond.state.listing import StateFamily, StateList
from millpond.state.listing import list_state as list
from millpond.state.lookups import Change, KeyHistory, history, lookup
from millpond.state.read_state import blame
from millpond.state.read_state import read_state as read

__all__ = [
    "Change",
    "KeyHistory",
    "StateFamily",
    "StateList",
    "blame",
    "history",
    "list",
    "lookup",
    "read",
]
