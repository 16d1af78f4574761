"""A limit on file size that acts as a full disk: the kernel offers it to any process, without a mount."""

import contextlib
import resource


@contextlib.contextmanager
def full_beyond(size):
    """Python ignores SIGXFSZ, so a write past `size` bytes of a file raises OSError (EFBIG), after a partial write."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
