"""What a process that evertrain started does with signals."""

from __future__ import annotations

import subprocess
import sys


def test_a_process_that_is_forked_from_one_that_notes_sigterm_is_ended_by_it() -> None:
    script = """
import multiprocessing, os, signal, time
from train_core.inside import note_sigterm, was_terminated

def wait(begun):
    begun.set()
    time.sleep(60)

note_sigterm(ends_process=False)
context = multiprocessing.get_context("fork")
begun = context.Event()
child = context.Process(target=wait, args=(begun,))
child.start()
begun.wait()
child.terminate()
child.join(30)
assert child.exitcode == -signal.SIGTERM, child.exitcode
assert not was_terminated()
os.kill(os.getpid(), signal.SIGTERM)
assert was_terminated()
"""
    subprocess.run([sys.executable, "-c", script], check=True, timeout=60)
