"""What tasks of a cluster do."""

import os
import socket
import stat
import time

from governor.tasks import TaskResult


def give_array(size):
    import numpy as np

    return np.arange(size)


def give_payload(size):
    return TaskResult(1, {}, b"p" * size)


def give_inputs(inputs):
    return inputs


def brief():
    time.sleep(3)


def close_sockets():
    """The stream is gone, the task goes on."""
    for number in range(3, 1000):
        try:
            is_inet = stat.S_ISSOCK(os.fstat(number).st_mode) and is_stream(number)
        except OSError:
            continue
        if is_inet:
            os.close(number)
    time.sleep(60)


def is_stream(number):
    """Whether it is a connection by TCP that Python has made: Ray's own do not say so."""
    with socket.socket(fileno=os.dup(number)) as sock:
        return sock.family == socket.AF_INET and sock.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1
