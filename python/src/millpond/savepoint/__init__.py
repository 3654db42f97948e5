"""Savepoints: a query at a committed batch, saved, looked at, moved, forked.

    from millpond import savepoint
    savepoint.create("/data/checkpoint", "/data/savepoints/monday")
    savepoint.restore("/data/savepoints/monday", "/data/fork")

The command `millpond savepoint` calls the same functions. Source: docs/guides/savepoints.md.
"""

from millpond.savepoint.bootstrapping import (
    BootstrapOperator,
    BootstrapReport,
    BootstrapSource,
    bootstrap,
)
from millpond.savepoint.create import CreateReport, create
from millpond.savepoint.diff import DiffReport, FamilyDiff, diff
from millpond.savepoint.edit import EditReport, edit
from millpond.savepoint.manage import (
    SavepointReport,
    SavepointView,
    delete,
    list_savepoints,
    show,
)
from millpond.savepoint.manage import verify_savepoint as verify
from millpond.savepoint.plan import OperatorVerdict, PlanReport, plan
from millpond.savepoint.restore import RestoreReport, fork, restore

__all__ = [
    "BootstrapOperator",
    "BootstrapReport",
    "BootstrapSource",
    "CreateReport",
    "DiffReport",
    "EditReport",
    "FamilyDiff",
    "OperatorVerdict",
    "PlanReport",
    "RestoreReport",
    "SavepointReport",
    "SavepointView",
    "bootstrap",
    "create",
    "delete",
    "diff",
    "edit",
    "fork",
    "list_savepoints",
    "plan",
    "restore",
    "show",
    "verify",
]
