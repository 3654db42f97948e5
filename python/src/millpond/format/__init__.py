"""What lies on storage, byte by byte: paths, the sealed envelope, manifests, changelogs, codecs.

The modules here take bytes, or an open local file, and do no other I/O. docs/reference/format.md
describes the bytes. All code that reads or writes state calls this room. It imports `model`.
`layout` alone builds and parses paths.
"""
