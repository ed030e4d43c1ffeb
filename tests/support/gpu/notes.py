"""A plugin of pytest that writes down each test when it begins and when it has ended, at once.

    GPU_NOTES=FILE python -m pytest -p support.gpu.notes ... -> lines of JSON, one with what was collected

So if a test hangs, and its process is ended, the file still says which one.
"""

import json
import os

MOST = 4000  # characters of a traceback


def note(**what):
    with open(os.environ["GPU_NOTES"], "a") as file:
        print(json.dumps(what), file=file, flush=True)


def pytest_collection_finish(session):
    note(collected=[item.nodeid for item in session.items])


def pytest_collectreport(report):
    if report.failed:
        note(test=report.nodeid, outcome="broken", said=str(report.longrepr)[-MOST:])


def pytest_runtest_logstart(nodeid):
    note(test=nodeid, outcome="begun")


def pytest_runtest_logreport(report):
    if report.when == "call" or report.outcome != "passed":
        said = report.longrepr[-1] if isinstance(report.longrepr, tuple) else str(report.longrepr or "")
        outcome = report.outcome if report.when == "call" or report.skipped else "broken"
        note(test=report.nodeid, outcome=outcome, said=said[-MOST:], seconds=round(report.duration, 2))
