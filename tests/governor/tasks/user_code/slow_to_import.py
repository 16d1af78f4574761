"""Its import takes longer than the timeouts of the tests."""

import time

time.sleep(1.0)


def quick():
    return "done"
