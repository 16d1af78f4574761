"""A disk that is full for files beyond a size, as the kernel can make one for a process without mounting anything."""

import contextlib
import resource


@contextlib.contextmanager
def full_beyond(size):
    """Python ignores SIGXFSZ, so a write past `size` bytes of a file is an OSError (EFBIG), a part of it taken before."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
