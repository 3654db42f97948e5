"""Estimates what the files of a store cost on an object storage: to write, to keep, and to restore
from (pure).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from millpond.config import OptionValue
from millpond.storage import Storage
from millpond.storage.prices import Prices, get_requests_of, parse_prices, put_requests_of
from millpond.storage.settings import S3Settings, storage_settings
from millpond.storage.usage import usage_of
from millpond.store.files import Listing


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreCost:
    """Estimates.

    They leave out requests that failed, listings of snapshots, and collections. The metrics of the
    query count those.
    """

    bytes: int  # of all files
    put_requests: int  # that wrote the present files
    put_dollars: float
    restore_requests: int  # GETs that restore the newest version on a host without copies
    month_dollars: float  # for keeping the bytes


@dataclass(frozen=True, slots=True)
class Tariff:
    """The prices, and the settings that decide on the number of requests."""

    prices: Prices
    s3: S3Settings


def tariff_for(storage: Storage, options: Mapping[str, OptionValue]) -> Tariff | None:
    """Return what costs in `storage` are reckoned with; None: nobody counts its requests.

    Args: options: all of them, resolved.
    Raises: InvalidInputError: INVALID_OPTION: storage.prices.
    """
    prices = parse_prices(str(options["storage.prices"]))
    return None if usage_of(storage) is None else Tariff(prices, storage_settings(options).s3)


def store_cost(listing: Listing, restore_sizes: list[int], tariff: Tariff) -> StoreCost:
    """Return what a store costs.

    Args:
        listing: its files.
        restore_sizes: in bytes, of the files that the newest snapshot's manifest names.
    """
    infos = [*listing.changelogs.values(), *listing.manifests.values(), *listing.ssts.values()]
    puts = sum(put_requests_of(info.size_bytes, tariff.s3) for info in infos)
    newest = max(listing.manifests, default=None)
    changelogs = sum(
        newest is None or version.version > newest.version for version in listing.changelogs
    )
    gets = sum(get_requests_of(size_bytes, tariff.s3) for size_bytes in restore_sizes)
    total_bytes = sum(info.size_bytes for info in infos)
    return StoreCost(
        bytes=total_bytes,
        put_requests=puts,
        put_dollars=tariff.prices.nano_dollars({"put_requests": puts}) / 1e9,
        restore_requests=changelogs + (newest is not None) + gets,
        month_dollars=tariff.prices.month_dollars(total_bytes),
    )


def sum_of(costs: list[StoreCost]) -> StoreCost:
    """Return the cost of all stores together."""
    return StoreCost(
        bytes=sum(cost.bytes for cost in costs),
        put_requests=sum(cost.put_requests for cost in costs),
        put_dollars=sum(cost.put_dollars for cost in costs),
        restore_requests=sum(cost.restore_requests for cost in costs),
        month_dollars=sum(cost.month_dollars for cost in costs),
    )
