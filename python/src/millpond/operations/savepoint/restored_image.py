"""The image of a query as a new Spark checkpoint holds it (pure)."""

from __future__ import annotations

from collections.abc import Mapping

from millpond.format import layout
from millpond.query import image as images
from millpond.query.image import Image
from millpond.spark.uris import uri_below

KEEP, DROP, GIVEN = "keep", "drop", "given"


def restored(
    image: Image,
    new_root: str,
    numbers: Mapping[int, int],
    *,
    offsets: str | Mapping[int, str],
    query_id: str | None,
) -> Image:
    """Return the image as the Spark checkpoint at `new_root` holds it (pure).

    Args:
        numbers: of operators, old to new; the others are left out.
        offsets: as for `restore`, an offset as text.
        query_id: None: the image has none, and Spark chooses one.
    """
    changed = images.with_rescale_pins(images.with_operators(image, numbers))
    if offsets != KEEP:
        changed = images.with_offsets(changed, {} if isinstance(offsets, str) else offsets)
    changed = images.with_entry_before(changed)
    if query_id is not None:
        changed = images.with_query_id(changed, query_id)
    return placed(changed, new_root)


def placed(image: Image, new_root: str) -> Image:
    """Return the image with what depends on its operators and its place."""
    # Spark finds the schemas of operators with column families by their absolute paths.
    return images.with_schema_paths(
        images.with_operator_records(image),
        lambda key: uri_below(new_root, layout.check_relative(key)),
    )
