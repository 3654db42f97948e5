"""Turns a seed into the setting and the steps of a schedule."""

from __future__ import annotations

import random
from dataclasses import replace

from integration.simulation.query import Step
from integration.simulation.setting import MINUTE_MS, Setting

# From this seed on, users erase keys, and others read the state meanwhile.
ERASING = 1_000_000
_LOOKS = ("read", "get", "history", "blame", "verify", "list", "native", "tables", "fork")


def setting_of(seed: int) -> Setting:
    """Return the setting of a seed.

    A seed switches each kind of trouble on or off. So some seeds have few kinds, but often.
    """
    chance = random.Random(f"setting/{seed}")

    def sometimes(value: float, share: float = 0.5) -> float:
        return value * chance.random() if chance.random() < share else 0.0

    backend = "heap" if chance.random() < 0.12 else "rocksdb"
    budget = "64m" if backend == "heap" else chance.choice(("64k", "256k", "64m", "64m"))
    struck = chance.choice(("", "", "", "flush", "flush", "disk", "snapshot", "changelog"))
    setting = Setting(
        shape=chance.choice(("transform", "transform", "join", "plain")),
        spark_format=chance.choice((1, 2)),
        storage=chance.choice(("local", "local", "object")),
        backend=backend,
        budget=budget,
        exact=chance.random() < 0.5,
        retain=chance.choice((1, 2, 2, 4)),
        deltas=chance.choice((1, 2, 4)),
        warm_up=chance.random() < 0.6,
        grace_ms=chance.choice((0, 10 * MINUTE_MS, 10 * MINUTE_MS)),
        partitions=chance.choice((1, 1, 1, 2)),
        switches=sometimes(0.5, 0.7),
        meanwhile=chance.choice((0.03, 0.1, 0.3)),
        stands=sometimes(0.3),
        storage_faults=sometimes(0.06),
        bodies=chance.random() < 0.3,
        local_faults=0.4 * chance.random() if struck else sometimes(0.2),
        deaths=sometimes(0.1),
        lingers=chance.random() < 0.2,
        large=budget != "64m" and chance.random() < 0.7,
        rows_at_once=chance.choice((1, 3, 20)),
        gather_bytes=chance.choice((1, 1, 200, 1 << 25)),
        struck=struck,
        waiting_rows=chance.choice((1, 2, 5, 16384)),
        room_bytes=chance.choice((0, 4096)),
        passes=chance.choice((0, 0, 1)),
    )
    if seed < ERASING:
        return setting
    troubled = chance.random() < 0.4
    return replace(
        setting,
        shape=chance.choice(("pairs", "keyed", "keyed", "sides")),
        partitions=chance.choice((1, 2)),
        storage_faults=0.0,
        local_faults=setting.local_faults if troubled else 0.0,
        deaths=setting.deaths if troubled else 0.0,
        bodies=False,
        kills=chance.choice((0.0, 0.03, 0.1)),
        purges=True,
        plain=True,
    )


def steps_of(seed: int) -> list[Step]:
    """Return the steps of a seed."""
    chance = random.Random(f"steps/{seed}")
    kinds = {
        "maintain": 8,
        "clock": 3,
        "kill": 2,
        "unload": 2,
        "read": 1,
        "audit": 1,
        "compact": 1,
        "settle": 1,
        "back": 2,
        "rescale": 1,
        "zombie": 2,
        "late": 1,
        "tear": 1,
        "litter": 1,
        "lose": 1,
        "savepoint": 1,
    }
    if seed >= ERASING:
        kinds |= {"erase": 8, "look": 8, "turns": 3}
    always = ("maintain", "erase", "look")
    allowed = {k: w for k, w in kinds.items() if k in always or chance.random() < 0.6}
    trouble = chance.choice((0.0, 0.2, 0.6))
    steps: list[Step] = []
    main = 0
    for _ in range(chance.randint(4, 9)):
        if chance.random() < 0.1:
            main ^= 1
        batch = _batch(chance, main, trouble)
        steps.append(batch)
        if "dies" in batch and "rescale" in allowed and chance.random() < 0.4:
            steps.append(_other(chance, "rescale", main))  # it meets the dead batch's files
        for _ in range(chance.choice((0, 1, 1, 2, 3))):
            do = chance.choices(list(allowed), list(allowed.values()))[0]
            steps.append(_other(chance, do, main))
            if do == "back" and chance.random() < 0.7:
                # The batch begins another lineage. The ghost knows only the old one.
                steps += [_batch(chance, main, trouble), _other(chance, "ghost", main)]
    return [{"id": number, **step} for number, step in enumerate(steps, start=1)]


def _batch(chance: random.Random, main: int, trouble: float) -> Step:
    batch: Step = {
        "do": "batch",
        "executor": main,
        "ops": chance.choice((1, 4, 8, 14)),
        "trouble": trouble,
    }
    if trouble and chance.random() < 0.08:
        batch["dies"] = chance.randint(0, 1)
    return batch


def _other(chance: random.Random, do: str, main: int) -> Step:
    executor = main if chance.random() < 0.7 else chance.choice((0, 1))
    if do == "maintain":
        what = chance.choice((["snapshot"], ["snapshot"], ["snapshot", "cleanup"], ["cleanup"]))
        return {
            "do": do,
            "executor": executor,
            "which": chance.randint(0, 3),
            "what": what,
            "background": chance.random() < 0.6,
        }
    if do == "erase":
        return {
            "do": do,
            "which": chance.randint(0, 63),
            "saved": chance.choice(("", "", "", "native", "canonical")),
            "lives_on": chance.choice((0.0, 0.5, 1.0)),
            "turns": chance.choice((0, 2, 5, 10)),
        }
    if do == "look":
        return {
            "do": do,
            "what": chance.choice(_LOOKS),
            "by": chance.randint(0, 3),
            "which": chance.randint(0, 63),
            "turns": chance.choice((0, 2, 5, 10)),
        }
    if do == "turns":
        return {"do": do, "turns": chance.choice((1, 3, 10, 40))}
    if do == "clock":
        return {
            "do": do,
            "ms": chance.choice(
                (1_000, MINUTE_MS, 11 * MINUTE_MS, 61 * MINUTE_MS, -30 * MINUTE_MS)
            ),
        }
    if do == "ghost":
        return {
            "do": do,
            "which": chance.randint(0, 3),
            "ms": chance.choice((1_000, 11 * MINUTE_MS, 11 * MINUTE_MS)),
        }
    if do == "zombie":
        which, ops = chance.randint(0, 3), chance.choice((1, 3, 6))
        other = 1 - main if chance.random() < 0.7 else main
        return {
            "do": do,
            "executor": other,
            "which": which,
            "ops": ops,
            "commits": chance.random() < 0.7,
        }
    if do == "late":
        return {"do": do, "executor": executor, "which": chance.randint(0, 3)}
    if do == "tear":
        return {"do": do, "executor": executor, "cut": chance.random() < 0.5}
    if do in ("kill", "unload", "lose"):
        return {"do": do, "executor": executor}
    if do in ("read", "audit", "savepoint"):
        return {"do": do, "executor": executor, "by": chance.randint(0, 3)}
    if do == "back":
        return {"do": do, "by": chance.randint(1, 3)}
    if do == "rescale":
        return {"do": do, "partitions": chance.choice((1, 2, 4))}
    return {"do": do}
