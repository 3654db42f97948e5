"""Answers questions about keys of a state over HTTP, and follows the query as it commits.

`following.py` knows which batch is the newest, `lookups.py` what a request asks for, `app.py` the
paths, `openapi.py` tells them. It needs the extras `tools` and `ui`.
"""
