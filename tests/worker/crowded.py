"""The tests' application in a process with more open files than select() can name (1024): agents with many sockets have them."""

import os
import resource

from application import app  # type: ignore[import-not-found]  # beside this file

__all__ = ["app"]

_, most = resource.getrlimit(resource.RLIMIT_NOFILE)
resource.setrlimit(resource.RLIMIT_NOFILE, (min(most, 4096), most))
OPEN = [os.open(os.devnull, os.O_RDONLY) for _ in range(1100)]
