"""Savepoints: a query at a committed batch, saved, looked at, moved, forked.

    from millpond import savepoint
    savepoint.create("/data/checkpoint", "/data/savepoints/monday")
    savepoint.restore("/data/savepoints/monday", "/data/fork")

The command `millpond savepoint` calls the same functions, and prints what they return. Guide:
docs/guides/savepoints.md.
"""

from millpond.operations.inspect import Problem
from millpond.operations.inspect.store_check import Checked
from millpond.operations.savepoint.bootstrap import (
    BootstrapOperator,
    BootstrapReport,
    BootstrapSource,
    bootstrap,
)
from millpond.operations.savepoint.create import CreateReport, create
from millpond.operations.savepoint.delete import DeleteReport, delete
from millpond.operations.savepoint.diff import DiffReport, FamilyDiff, RowDiff, diff
from millpond.operations.savepoint.edit import EditReport, edit
from millpond.operations.savepoint.manage import (
    SavepointList,
    SavepointReport,
    SavepointView,
    Unreadable,
    list_savepoints,
    show,
)
from millpond.operations.savepoint.manage import savepoints_of as list
from millpond.operations.savepoint.manage import verify_savepoint as verify
from millpond.operations.savepoint.match_job import PlanReport, plan
from millpond.operations.savepoint.restore import RestoreReport, fork, restore
from millpond.operations.savepoint.verdicts import OperatorVerdict
from millpond.spark.column_changes import ColumnChanges

__all__ = [
    "BootstrapOperator",
    "BootstrapReport",
    "BootstrapSource",
    "Checked",
    "ColumnChanges",
    "CreateReport",
    "DeleteReport",
    "DiffReport",
    "EditReport",
    "FamilyDiff",
    "OperatorVerdict",
    "PlanReport",
    "Problem",
    "RestoreReport",
    "RowDiff",
    "SavepointList",
    "SavepointReport",
    "SavepointView",
    "Unreadable",
    "bootstrap",
    "create",
    "delete",
    "diff",
    "edit",
    "fork",
    "list",
    "list_savepoints",
    "plan",
    "restore",
    "show",
    "verify",
]
