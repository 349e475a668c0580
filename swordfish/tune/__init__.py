"""Measured configurations: the table that dispatch reads, and what ``swordfish tune`` needs to fill it.

Importing this package brings only what a lookup needs; :mod:`swordfish.tune.measure` does the measuring.
"""

from swordfish.tune.candidates import FAMILIES, Family, candidates
from swordfish.tune.table import ROWS, Entry, Table, device_table, row_bucket, table_path

__all__ = [
    "FAMILIES",
    "ROWS",
    "Entry",
    "Family",
    "Table",
    "candidates",
    "device_table",
    "row_bucket",
    "table_path",
]
