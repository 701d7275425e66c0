"""For the tests of applications: run a handler in-process, without a database (Q50).

Guarantees: payload, checkpoints and result go through the same JSON rules and the same judgement of exceptions as in a
worker. Does not retry, time out or isolate: one call is one delivery, `isolation="process"` runs in this process too.
"""

from poolkeeper.testing.runner import TestResult, arun_task, run_task

__all__ = ["TestResult", "arun_task", "run_task"]
