"""The pages of `millpond ui`: queries and savepoints in a browser, read-only, without a JVM.

`places` finds them, `views` says what a page shows, `app` serves both. The pages themselves are in
`static`; they ask for JSON and take nothing from the network. The command line calls this package.
It may import the rooms below `cli`. Needs the extra `ui`.
"""
