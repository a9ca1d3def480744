"""Processes that end with the one that started them, however that dies."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import threading
import time

_LOOK_S = 0.5
_PR_SET_PDEATHSIG = 1


def end_with(parent: int) -> None:
    """Have this process get SIGTERM once its parent, process `parent`, is gone; at once if it is gone already.

    Linux tells by itself (when the *thread* ends that started us); elsewhere a thread looks now and then.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
    else:
        threading.Thread(target=_watch, args=(parent,), daemon=True).start()
    if os.getppid() != parent:
        sys.exit(1)


def _watch(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(_LOOK_S)
    os.kill(os.getpid(), signal.SIGTERM)
