"""Millpond's version. The wheel, the jar's stamp and manifests take it from here."""

__version__ = "0.1.0"
