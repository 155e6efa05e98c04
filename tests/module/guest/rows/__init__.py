"""The rows of docs/compatibility.md, a file for each group."""

from row import ROWS

from . import asynchronous, company, data, information, readiness, sharing, time

GROUPS = {
    "data": "Data",
    "asynchronous": "Asynchronous data",
    "readiness": "Readiness",
    "time": "Time and life",
    "information": "Information",
    "sharing": "Sharing",
    "company": "Company",
}
__all__ = ["GROUPS", "ROWS", "asynchronous", "company", "data", "information", "readiness", "sharing", "time"]
