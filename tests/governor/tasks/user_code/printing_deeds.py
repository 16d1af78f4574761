"""What tasks print, in all ways that there are."""

import ctypes
import logging
import os
import subprocess
import sys
import time
import warnings

from governor.tasks import TaskCancelled


def speak(context):
    name = f"{context.task}.{context.run_id}"
    print("print", name)  # noqa: T201  # what it is for
    print("error", name, file=sys.stderr)  # noqa: T201  # as above
    os.write(1, f"raw {name}\n".encode())
    ctypes.CDLL(None).puts(f"puts {name}".encode())
    subprocess.run(["sh", "-c", f"echo child {name}"], check=True)
    logging.getLogger("mine").warning("logged %s", name)
    warnings.warn(f"warned {name}", stacklevel=1)
    context.log.debug("context %s", name)
    print("part", name, end="")  # noqa: T201  # as above


def raw_part(context):
    os.write(1, f"part {context.task}.{context.run_id}".encode())


def be_silent():
    pass


def hang(text, note=""):
    """Prints a raw part of a line, and holds the lock of Python until it is killed."""
    try:
        print("python", text)  # noqa: T201  # as above
        os.write(1, text.encode())
        if note:
            with open(note, "w"):  # noqa: PTH123  # as above
                pass
        ctypes.PyDLL(None).sleep(60)
    except TaskCancelled:
        time.sleep(60)


def shout(lines):
    block = b"".join(b"%06d %s\n" % (number, b"x" * 90) for number in range(1000))
    for _ in range(lines // 1000):
        os.write(1, block)
    os.write(1, b"the last line\n")


def tick(note):
    """A line each 10 ms; the note has the last one."""
    number = 0
    while True:
        number += 1
        line = f"tick {number} {time.time():.2f}"
        os.write(1, f"{line}\n".encode())
        with open(note, "w") as file:  # noqa: PTH123  # as above
            file.write(line)
        time.sleep(0.01)
