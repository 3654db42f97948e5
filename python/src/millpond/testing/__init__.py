"""Suites that prove an implementation; shipped, so that a third-party storage can prove itself. Needs pytest."""
