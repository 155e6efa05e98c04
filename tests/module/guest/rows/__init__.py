# SPDX-License-Identifier: Apache-2.0 OR MIT
"""The rows of docs/compatibility.md, a file for each group."""

from row import DIFFERENCES, ROWS

from . import asynchronous, company, data, differences, information, readiness, sharing, time

GROUPS = {
    "data": "Data",
    "asynchronous": "Asynchronous data",
    "readiness": "Readiness",
    "time": "Time and life",
    "information": "Information",
    "sharing": "Sharing",
    "company": "Company",
}
__all__ = [
    "DIFFERENCES",
    "GROUPS",
    "ROWS",
    "asynchronous",
    "company",
    "data",
    "differences",
    "information",
    "readiness",
    "sharing",
    "time",
]
