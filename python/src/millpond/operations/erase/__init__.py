"""Erases a key from the state of a stopped query, and from savepoints.

    millpond.erase(["/data/pond", "/saved/monday"], key={"user": 42})

Every retained version is written anew where it holds the key. `run` leads the way; `matching` tells
which rows are the key's, `scan` reads all that files hold, `plan` says what is written anew (pure),
`write` writes it, `tables` does the same for canonical savepoints, `places` opens and marks what is
erased from, `journal` makes it repeatable, and `proof` reads what is left. It may import what is
below `operations`. Needs the extra `tools`.
"""
